"""inspect-ai and lm-eval against a running stator: BASE_URL MODEL."""

import json
import os
import subprocess
import sys
import tempfile

from checks import base_url, model, question, run


def inspect_ai():
    import inspect_ai
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    task = inspect_ai.Task(
        dataset=[Sample(input=question, target="e"), Sample(input="Tell me about the sea.", target="e")],
        solver=generate(), scorer=includes(), config=GenerateConfig(max_tokens=8, temperature=0),
    )
    with tempfile.TemporaryDirectory() as logs:
        for name, settings in (("openai", {"responses_api": True}), ("openai-api/stator", {})):
            judged = get_model(f"{name}/{model}", base_url=base_url + "/v1", api_key="unused", **settings)
            [log] = inspect_ai.eval(task, model=judged, log_dir=logs, display="none", score_display=False)
            assert log.status == "success" and len(log.samples) == 2, log.error
            assert all(sample.output.completion for sample in log.samples), log.samples


def lm_eval():
    with tempfile.TemporaryDirectory() as home:
        with open(f"{home}/data.json", "w") as data:
            for number in range(4):
                data.write(json.dumps({"question": f"{number} and {number} is", "answer": str(2 * number)}) + "\n")
        with open(f"{home}/sums.yaml", "w") as task:
            task.write(f"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {home}/data.json}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 8}}
metric_list: [{{metric: exact_match}}]
""")
        environment = os.environ | {"HF_HOME": home, "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "unused"}
        for kind, path, more in (
            ("local-completions", "/v1/completions", []),
            ("local-chat-completions", "/v1/chat/completions", ["--apply_chat_template"]),
        ):
            arguments = f"model={model},base_url={base_url}{path},tokenizer_backend=None,tokenized_requests=False," \
                        "num_concurrent=2,max_retries=1"
            ran = subprocess.run(
                [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", "sums",
                 "--include_path", home, "--output_path", f"{home}/out", *more],
                env=environment, capture_output=True, text=True)
            assert ran.returncode == 0 and "exact_match" in ran.stdout, ran.stdout + ran.stderr


run(inspect_ai, lm_eval)
