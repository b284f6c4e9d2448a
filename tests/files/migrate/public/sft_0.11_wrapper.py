import torch
from transformers import AutoTokenizer

from transformers import LlamaForCausalLM
from peft import LoraConfig

from trl import SFTTrainer, DataCollatorForCompletionOnlyLM
from transformers import TrainingArguments

from accelerate import PartialState
from functools import partial

from simul.trainer_wrapper import SimulSFTTrainerWrapper


class LlamaSFTTrainerWrapper(SimulSFTTrainerWrapper):
    def setup_model_and_tokenizer(self, args):
        compute_dtype = getattr(torch, args.bnb_4bit_compute_dtype)
        self.model = LlamaForCausalLM.from_pretrained(
            self.model_name,
            quantization_config=self.bnb_config if self.bnb else None,
            device_map=({'':PartialState().process_index} if self.fsdp else "auto"),
            trust_remote_code=True,
            torch_dtype=compute_dtype,
        )
        self.tokenizer = AutoTokenizer.from_pretrained(self.model_name)

    def setup_trainer(self, args):
        response_template = "<a>:"
        collator = DataCollatorForCompletionOnlyLM(response_template, tokenizer=self.tokenizer)

        formatting = partial(formatting_func, source_lang=self.source_lang)
        if self.naive_training:
            formatting = partial(formatting_func_nmt, source=self.source)

        self.trainer = SFTTrainer(
            model=self.model,
            train_dataset=self.training,
            eval_dataset=self.validation,
            peft_config=self.peft_config if self.peft else None,
            max_seq_length=args.max_seq_length,
            tokenizer=self.tokenizer,
            data_collator=collator,
            formatting_func=formatting,
            args=self.training_arguments,
        )

    def train(self):
        self.trainer.train()
        self.trainer.save_model("test-output")


def formatting_func(example, source_lang):
    output_texts = []
    for i in range(len(example['source'])):
        output_texts.append(f"{source_lang} {example['source'][i]} <a>: {example['target'][i]}")
    return output_texts


def formatting_func_nmt(example, source):
    return [f"{text} <a>: " for text in example[source]]
