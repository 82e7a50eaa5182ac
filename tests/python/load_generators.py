"""guidellm and aiperf, each over several APIs, against a running stator: BASE_URL MODEL.

Both make their prompts with the bundled model's tokenizer, and read nothing from the network.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

from checks import base_url, model, run

TOKENIZER = pathlib.Path(__file__).parents[2] / "worker-agent/tiny-model"
PROGRAMS = pathlib.Path(sys.executable).parent
REQUESTS = 6


def ran(home, command, **environment):
    """Runs a command that must succeed, with its files in a folder."""
    environment = os.environ | {"HF_HOME": f"{home}/hf"} | environment
    done = subprocess.run([str(part) for part in command], cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def guidellm():
    for path, streams in (
        ("/v1/chat/completions", True), ("/v1/completions", True), ("/v1/responses", True), ("/v1/embeddings", False),
    ):
        with tempfile.TemporaryDirectory() as home:
            ran(home, [
                PROGRAMS / "guidellm", "run", "--disable-console",
                "--backend", f"kind=openai_http,target={base_url},model={model},request_format={path}",
                "--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}",
                "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}",
                "--data", "kind=synthetic_text,prompt_tokens=48,output_tokens=8",
                "--data-loader", f"kind=pytorch,samples={REQUESTS}", "--output", "kind=json,path=report.json",
            ], HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")
            [benchmark] = json.load(open(f"{home}/report.json"))["benchmarks"]
        metrics = benchmark["metrics"]
        totals = metrics["request_totals"]
        assert totals == {"successful": REQUESTS, "errored": 0, "incomplete": 0, "total": REQUESTS}, (path, totals)
        if streams:
            first = metrics["time_to_first_token_ms"]["successful"]
            assert first["count"] == REQUESTS and first["min"] > 0, (path, first)
            tokens = metrics["output_token_count"]["successful"]
            assert tokens["min"] == tokens["max"] == 8, (path, tokens)


def aiperf():
    words = ["--synthetic-input-tokens-mean", "48"]
    answers = words + ["--output-tokens-mean", "8", "--streaming"]
    for kind, options in (
        ("chat", [*answers, "--extra-inputs", "ignore_eos:true"]), ("responses", answers), ("messages", answers),
        ("embeddings", words), ("cohere-rankings", ["--rankings-passages-mean", "3"]),
    ):
        with tempfile.TemporaryDirectory() as home:
            ran(home, [
                PROGRAMS / "aiperf", "profile", "--model", model, "--url", base_url, "--endpoint-type", kind, "--tokenizer", TOKENIZER,
                "--request-count", REQUESTS, "--concurrency", "2", "--output-artifact-dir", "out", "--ui", "none", *options,
            ])
            report = json.load(open(f"{home}/out/profile_export_aiperf.json"))
        assert report["request_count"]["avg"] == REQUESTS and report["error_summary"] == [], (kind, report)
        if options[:len(answers)] == answers:
            first = report["time_to_first_token"]
            assert first["count"] == REQUESTS and first["min"] > 0, (kind, first)
        if kind == "chat":
            tokens = report["output_sequence_length"]
            assert tokens["min"] == tokens["max"] == 8, tokens


run(guidellm, aiperf)
