import tempfile

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments, WavLMForSequenceClassification

from tests.support import zoo

config = zoo.tiny_model("wavlm").make_config(0.3)
torch.manual_seed(0)
draws = torch.Generator().manual_seed(1)
data = [{"input_values": torch.randn(200, generator=draws), "labels": torch.tensor(index % 2)} for index in range(32)]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=6,
        ddp_find_unused_parameters=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(WavLMForSequenceClassification(config), arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(trainer.state.global_step, sorted(trainer.model.state_dict())[:3])
torch.distributed.destroy_process_group()
