import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.05)
data = torch.utils.data.DataLoader(torch.arange(64.0).reshape(16, 4).sin(), batch_size=2, shuffle=True)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
for _ in range(3):
    for x in data:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).pow(2).mean())
            optimizer.step()
            optimizer.zero_grad()
print([each.tolist() for each in accelerator.unwrap_model(model).parameters()])
accelerator.end_training()
