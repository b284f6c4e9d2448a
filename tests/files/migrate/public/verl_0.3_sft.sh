set -x

model_path="${MODEL_PATH:-org/llama-8b}"
bsz="${BATCH_SIZE:-128}"
nnodes="${NNODES:-1}"
logger="${LOGGER:-['console','wandb']}"

torchrun --standalone --nnodes=${nnodes} --nproc_per_node=8 \
     -m verl.trainer.fsdp_sft_trainer \
    data.train_files=${TRAIN_FILES} \
    data.val_files=${VAL_FILES} \
    data.prompt_key=prompt \
    data.response_key=response \
    data.max_length=3072 \
    data.truncation=right \
    optim.lr=2e-5 \
    data.train_batch_size=${bsz} \
    data.micro_batch_size_per_gpu=1 \
    model.partial_pretrain=${model_path} \
    trainer.default_hdfs_dir=checkpoints \
    trainer.logger=${logger} \
    trainer.total_epochs=1 \
    ulysses_sequence_parallel_size=1 \
    use_remove_padding=true \
    "$@"
