import tempfile

import torch
from transformers import PrinterCallback, Trainer, TrainingArguments, WavLMConfig, WavLMForSequenceClassification

zeros = ("hidden", "activation", "attention", "feat_proj", "final")
config = WavLMConfig(
    hidden_size=16,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=16,
    conv_dim=(8, 8),
    conv_kernel=(3, 3),
    conv_stride=(2, 2),
    num_conv_pos_embeddings=4,
    num_conv_pos_embedding_groups=2,
    classifier_proj_size=8,
    apply_spec_augment=False,
    layerdrop=0.3,
    **{f"{name}_dropout": 0.0 for name in zeros},
)
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
