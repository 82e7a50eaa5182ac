"""Claude Code and Codex against a running stator: BASE_URL MODEL.

A relay between an agent and stator stands in for a model that knows what to do, which the bundled one does
not: it forces the first answer to be a call with arguments that it gives, and the next one to be a word.
Everything else of a request goes on as the agent wrote it.
"""

import http.client
import http.server
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import urllib.parse

from checks import base_url, model, run

clients = pathlib.Path(sys.prefix).parent
packages = clients / "agents/node_modules"
node = clients / "venv/bin/node"
done = {"enum": ["done"]}


class Relay(http.server.BaseHTTPRequestHandler):
    """Passes requests on, and keeps each with its answer in the server's `exchanges`."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_POST()

    def do_GET(self):
        self.do_POST()

    def do_POST(self):
        sent = self.rfile.read(int(self.headers.get("content-length") or 0))
        body = json.loads(sent) if sent else None
        path = urllib.parse.urlsplit(self.path).path
        steered = {"/v1/messages": steer_message, "/v1/responses": steer_response}.get(path)
        if steered:
            steered(body, self.server.tool, self.server.arguments)
        wire = http.client.HTTPConnection(urllib.parse.urlsplit(base_url).netloc)
        skipped = ("host", "content-length", "connection", "accept-encoding")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in skipped}
        wire.request(self.command, self.path, json.dumps(body) if body else None, headers)
        answer = wire.getresponse()
        text = answer.read()
        self.server.exchanges.append((path, dict(self.headers), json.loads(sent or "null"), answer.status, text.decode()))
        self.send_response(answer.status)
        for name in ("content-type", "x-request-id", "request-id", "retry-after"):
            if answer.headers[name]:
                self.send_header(name, answer.headers[name])
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def forced(arguments):
    """A schema that takes these arguments alone."""
    properties = {name: {"enum": [value]} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments), "additionalProperties": False}


def steer_message(body, tool, arguments):
    body["temperature"] = 0
    for known in body.get("tools", []):
        if known["name"] == tool:
            known["input_schema"] = forced(arguments)
    if '"tool_result"' in json.dumps(body["messages"]):
        body["output_config"] = body.get("output_config", {}) | {"format": {"type": "json_schema", "schema": done}}
    else:
        body["tool_choice"] = {"type": "tool", "name": tool, "disable_parallel_tool_use": True}


def steer_response(body, tool, arguments):
    body["temperature"] = 0
    for known in body.get("tools", []):
        if known.get("name") == tool and known["type"] == "custom":
            known["format"]["definition"] = "start: " + json.dumps(arguments)
        elif known.get("name") == tool:
            known["parameters"] = forced(arguments)
    kind = "custom" if isinstance(arguments, str) else "function"
    if "_call_output" in json.dumps(body["input"]):
        body["text"] = {"format": {"type": "json_schema", "name": "done", "schema": done}}
    else:
        body["tool_choice"] = {"type": kind, "name": tool}


class Agent:
    """An agent in a home and a folder of its own, behind a relay that has it call `tool` with `arguments`."""

    def __init__(self, tool, arguments):
        self.folder = tempfile.TemporaryDirectory()
        self.home = pathlib.Path(self.folder.name)
        (self.home / "work").mkdir()
        self.relay = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Relay)
        self.relay.tool, self.relay.arguments, self.relay.exchanges = tool, arguments, []
        self.url = f"http://127.0.0.1:{self.relay.server_port}"
        threading.Thread(target=self.relay.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.relay.shutdown()
        self.relay.server_close()
        self.folder.cleanup()

    def run(self, command, environment):
        """What a run prints, and the exchanges that it had."""
        known = len(self.relay.exchanges)
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)} | environment
        ran = subprocess.run(
            [str(node), *map(str, command)], cwd=self.home / "work", env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=300,
        )
        exchanges = self.relay.exchanges[known:]
        assert ran.returncode == 0, (ran.stdout, ran.stderr, [exchange[4] for exchange in exchanges])
        assert exchanges and all(status == 200 for *_, status, _ in exchanges), [exchange[3:] for exchange in exchanges]
        return ran.stdout, exchanges


def events(text):
    """The data of a stream's events."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


def billing_line(body):
    """The first block of Claude Code's system text."""
    line = body["system"][0]["text"]
    assert line.startswith("x-anthropic-billing-header:"), line
    return line


def claude_code():
    with Agent("Read", {}) as agent:
        file = agent.home / "work/notes.txt"
        file.write_text("The garden is behind the house.\n")
        agent.relay.arguments = {"file_path": str(file)}
        environment = {
            "ANTHROPIC_BASE_URL": agent.url, "ANTHROPIC_AUTH_TOKEN": "unused", "ANTHROPIC_MODEL": model,
            "ANTHROPIC_SMALL_FAST_MODEL": model, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "400",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
        }

        def ask(question):
            # Its own instructions and tools alone are four times the bundled model's context.
            said, exchanges = agent.run(
                [packages / "@anthropic-ai/claude-code/cli-wrapper.cjs", "-p", question, "--output-format", "json",
                 "--system-prompt", "You answer questions about files.", "--tools", "Read", "--allowedTools", "Read",
                 "--setting-sources", "", "--disable-slash-commands", "--strict-mcp-config"],
                environment,
            )
            result = json.loads(said)
            assert not result["is_error"] and json.loads(result["result"]) == "done", result
            assert result["num_turns"] == 2 and result["usage"]["output_tokens"] > 0, result
            asked = [exchange for exchange in exchanges if exchange[0] == "/v1/messages"]
            assert len(asked) == 2, asked
            first, second = asked
            assert "tool_use" in first[4] and "behind the house" in json.dumps(second[2]["messages"]), asked
            usage = [events(text)[0]["message"]["usage"] for *_, text in asked]
            whole = usage[1]["input_tokens"] + usage[1]["cache_read_input_tokens"]
            # The first prompt is the beginning of the second one, but for a last block.
            assert usage[1]["cache_read_input_tokens"] >= usage[0]["input_tokens"] - 64, (usage, whole)
            return billing_line(first[2]), usage[0]

        line, _ = ask("Where is the garden?")
        other_line, usage = ask("What does the file say about the garden?")
        print("  ", line, "|", other_line, "|", usage)
        # Another conversation: its line may differ, and what is equal behind it is there already.
        assert usage["cache_read_input_tokens"] > usage["input_tokens"], usage


# A model that Codex tells of `apply_patch`, as it does those that it knows.
PATCHING = {
    "slug": model, "display_name": model, "description": model, "apply_patch_tool_type": "freeform",
    "shell_type": "shell_command", "visibility": "list", "supported_in_api": True, "priority": 1,
    "supported_reasoning_levels": [], "supports_reasoning_summaries": False, "support_verbosity": False,
    "supports_parallel_tool_calls": False, "experimental_supported_tools": [], "base_instructions": "",
    "truncation_policy": {"mode": "tokens", "limit": 10000}, "context_window": 4096,
}


class Codex(Agent):
    """Codex in a home of its own."""

    models = None

    def ask(self):
        """The items that it tells, and the requests that it sent with their answers."""
        home = self.home / "codex"
        home.mkdir()
        (home / "instructions.md").write_text("You answer questions about files.\n")
        (home / "models.json").write_text(json.dumps({"models": self.models}))
        catalog = f'model_catalog_json = "{home}/models.json"\n' if self.models else ""
        (home / "config.toml").write_text(
            f'{catalog}model = "{model}"\nmodel_provider = "stator"\nweb_search = "disabled"\n'
            f'model_instructions_file = "{home}/instructions.md"\n'
            f'[model_providers.stator]\nname = "stator"\nbase_url = "{self.url}/v1"\nenv_key = "STATOR_KEY"\n'
            'wire_api = "responses"\n'
            # Their instructions and tools are longer than the bundled model's context.
            "[features]\nmulti_agent = false\ngoals = false\n[skills]\ninclude_instructions = false\n"
        )
        said, exchanges = self.run(
            [packages / "@openai/codex/bin/codex.js", "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access",
             "--json", "Where is the garden?"],
            {"CODEX_HOME": str(home), "STATOR_KEY": "unused"},
        )
        told = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        assert '"done"' in [item["item"].get("text") for item in told if item.get("item")], told
        asked = [exchange for exchange in exchanges if exchange[0] == "/v1/responses"]
        assert len(asked) == 2, asked
        usage = [events(text)[-1]["response"]["usage"] for *_, text in asked]
        cached = usage[1]["input_tokens_details"]["cached_tokens"]
        assert cached >= usage[0]["input_tokens"] - 64, usage
        print("  ", usage)
        return told, asked


def outputs(asked, kind):
    return [item for item in asked[1][2]["input"] if item["type"] == kind]


def codex():
    with Codex("exec_command", {"cmd": "echo stator"}) as agent:
        _, asked = agent.ask()
        [output] = outputs(asked, "function_call_output")
        assert "stator" in output["output"], output


def codex_changes_a_file():
    patch = '*** Begin Patch\n*** Add File: notes.txt\n+The "garden".\n*** End Patch\n'
    with Codex("apply_patch", patch) as agent:
        agent.models = [PATCHING]
        _, asked = agent.ask()
        assert (agent.home / "work/notes.txt").read_text() == 'The "garden".\n', asked
        [call], [output] = (outputs(asked, kind) for kind in ("custom_tool_call", "custom_tool_call_output"))
        assert call["input"] == patch and call["call_id"] == output["call_id"], (call, output)
        # Its own grammar holds calls, too.
        body = asked[0][2] | {"tool_choice": {"type": "custom", "name": "apply_patch"}, "max_output_tokens": 200,
                              "stream": False, "parallel_tool_calls": False}
        [tool] = [tool for tool in body["tools"] if tool.get("name") == "apply_patch"]
        assert tool["format"]["syntax"] == "lark", tool
        wire = http.client.HTTPConnection(urllib.parse.urlsplit(base_url).netloc)
        wire.request("POST", "/v1/responses", json.dumps(body), {"content-type": "application/json"})
        answer = json.load(wire.getresponse())
        [call] = [item for item in answer["output"] if item["type"] == "custom_tool_call"]
        assert call["input"].startswith("*** Begin Patch\n*** "), answer


run(claude_code, codex, codex_changes_a_file)
