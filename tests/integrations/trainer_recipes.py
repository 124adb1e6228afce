"""How the loader goes into accelerate, Hugging Face's Trainer and Lightning unharmed. The README shows these.

What they have in common: hand them the loader itself, never a ``DataLoader`` around it, or they deal out its batches once
more; save the gathered state of all ranks; and switch off their own skipping of batches at a resume.
"""

from __future__ import annotations

from zephon_nodes import gather_state


class DataState:
    """What is saved of a loader: the states of all ranks as one. For whatever saves objects with ``state_dict``."""

    def __init__(self, loader):
        self.loader = loader

    def state_dict(self):
        return gather_state(self.loader)

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


# accelerate


def train_with_accelerate(model, optimizer, loader, folder, steps, save_at=None, resume=None, see=None):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)  # the loader needs no preparing ...
    assert (
        accelerator.prepare(loader) is loader
    )  # ... which would leave it as it is; a DataLoader would be dealt out again
    accelerator.register_for_checkpointing(DataState(loader))
    if resume is not None:
        accelerator.load_state(str(resume))
    for step, batch in enumerate(loader, start=1):
        tensors = batch.to_training()
        loss = model(**tensors)
        see(batch)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step == save_at:
            accelerator.save_state(str(folder / "accelerate"))
        if step == steps:
            break
    accelerator.end_training()


# Hugging Face's Trainer


def hf_trainer(model, loader, folder, steps, save_at, see):
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Fed:
        """Batches as models of transformers take them: these shift ``labels`` themselves, but not ``shift_labels``."""

        def __iter__(self):
            for batch in loader:
                see(batch)
                tensors = batch.to_training()
                yield {**tensors, "shift_labels": tensors["labels"]}

    class SaveData(TrainerCallback):
        def on_save(self, args, state, control, **others):
            saved = gather_state(loader)
            if state.is_world_process_zero:
                torch.save(saved, f"{args.output_dir}/checkpoint-{state.global_step}/data.pt")

    class ElasticTrainer(Trainer):
        def get_train_dataloader(self):
            return Fed()

        def train(self, resume_from_checkpoint=None, **settings):
            if resume_from_checkpoint is not None:
                loader.load_state_dict(torch.load(f"{resume_from_checkpoint}/data.pt", weights_only=True))
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **settings)

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        save_steps=save_at,
        ignore_data_skip=True,  # the loader knows where it is
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        max_grad_norm=0.0,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return ElasticTrainer(model, arguments, train_dataset=loader, callbacks=[SaveData()])


# Lightning


def lightning_data(loader, see):
    import lightning

    class Fed:
        """Lightning reads a batch ahead of training, so each batch brings along the loader's state behind it."""

        def __iter__(self):
            for batch in loader:
                yield batch, loader.state_dict()

    class Data(lightning.LightningDataModule):
        at = None

        def train_dataloader(self):
            return Fed()

        def on_before_batch_transfer(self, batch, dataloader_idx):
            batch, self.at = batch
            see(batch)
            return batch.to_training()

        def state_dict(self):
            return gather_state(self.at)

        def load_state_dict(self, state):
            loader.load_state_dict(state)

    return Data()
