"""An ordinary SpeechBrain recipe: CTC over a self-supervised encoder, on synthetic speech.

torchrun --nproc_per_node=2 train.py train.yaml --distributed_backend=gloo --device=cpu
"""

import sys

import speechbrain as sb
from hyperpyyaml import load_hyperpyyaml


class ASR(sb.Brain):
    def compute_forward(self, batch, stage):
        batch = batch.to(self.device)
        wavs, lengths = batch.sig
        features = self.modules.wav2vec2(wavs)
        return self.hparams.log_softmax(self.modules.ctc_lin(features)), lengths

    def compute_objectives(self, predictions, batch, stage):
        log_probabilities, lengths = predictions
        tokens, token_lengths = batch.tokens
        # On a CPU, mixed precision hands on what the loss cannot take.
        return self.hparams.ctc_cost(log_probabilities.float(), tokens, lengths, token_lengths)

    def on_stage_end(self, stage, stage_loss, epoch):
        if stage == sb.Stage.TRAIN:
            self.train_loss = float(stage_loss)
        if stage == sb.Stage.VALID:
            old, new = self.hparams.lr_annealing(float(stage_loss))
            sb.nnet.schedulers.update_learning_rate(self.optimizer, new)
            self.hparams.train_logger.log_stats(
                stats_meta={"epoch": epoch, "lr": old},
                train_stats={"loss": self.train_loss},
                valid_stats={"loss": float(stage_loss)},
            )
            self.checkpointer.save_and_keep_only(meta={"loss": float(stage_loss)}, min_keys=["loss"])


def dataio_prepare(hparams):
    """The datasets of the two manifests."""
    sets = [sb.dataio.dataset.DynamicItemDataset.from_json(hparams[name]) for name in ("train_json", "valid_json")]

    @sb.utils.data_pipeline.takes("wav")
    @sb.utils.data_pipeline.provides("sig")
    def audio_pipeline(wav):
        return sb.dataio.dataio.read_audio(wav)

    @sb.utils.data_pipeline.takes("words")
    @sb.utils.data_pipeline.provides("tokens")
    def text_pipeline(words):
        import torch

        return torch.LongTensor([ord(letter) - ord("a") + 1 for letter in words])

    sb.dataio.dataset.add_dynamic_item(sets, audio_pipeline)
    sb.dataio.dataset.add_dynamic_item(sets, text_pipeline)
    sb.dataio.dataset.set_output_keys(sets, ["id", "sig", "tokens"])
    return sets


def switch_on_checkpointing(hparams):
    """Gradient checkpointing of the encoder, as the user's own line does it after construction."""
    kind = hparams["gradient_checkpointing"]
    if kind is not None:
        given = {} if kind == "default" else {"gradient_checkpointing_kwargs": {"use_reentrant": kind == "reentrant"}}
        hparams["modules"]["wav2vec2"].model.gradient_checkpointing_enable(**given)


if __name__ == "__main__":
    hparams_file, run_opts, overrides = sb.parse_arguments(sys.argv[1:])
    sb.utils.distributed.ddp_init_group(run_opts)
    with open(hparams_file) as fin:
        hparams = load_hyperpyyaml(fin, overrides)
    sb.create_experiment_directory(
        experiment_directory=hparams["output_folder"], hyperparams_to_save=hparams_file, overrides=overrides
    )
    switch_on_checkpointing(hparams)
    train_data, valid_data = dataio_prepare(hparams)
    asr_brain = ASR(
        modules=hparams["modules"],
        opt_class=hparams["opt_class"],
        hparams=hparams,
        run_opts=run_opts,
        checkpointer=hparams["checkpointer"],
    )
    asr_brain.fit(
        hparams["epoch_counter"],
        train_data,
        valid_data,
        train_loader_kwargs=hparams["train_dataloader_opts"],
        valid_loader_kwargs=hparams["valid_dataloader_opts"],
    )
