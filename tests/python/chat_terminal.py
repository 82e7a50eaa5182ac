"""Talks to `stator chat` in a pseudo-terminal: as a person does, key by key.

Arguments: the binary, the address of a server, the name of its model.
"""

import json
import os
import pty
import re
import select
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

DEADLINE_S = 60
CTRL_C, CTRL_D = b"\x03", b"\x04"
# A prompt, and where the editor puts the cursor then.
PROMPT = r"> (?:\r|\x1b\[[0-9;?]*[a-zA-Z])*$"


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, *words):
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            os.environ.pop("NO_COLOR", None)
            os.execv(words[0], words)
        self.seen = ""

    def until(self, pattern):
        """Reads on until the unread part matches; returns what was read up to there."""
        while not (found := re.search(pattern, self.seen)):
            ready, _, _ = select.select([self.master], [], [], DEADLINE_S)
            assert ready, f"no {pattern!r} within {self.seen!r}"
            try:
                part = os.read(self.master, 65536)
            except OSError:
                part = b""
            assert part, f"ended without {pattern!r}: {self.seen!r}"
            self.seen += part.decode(errors="replace")
        text, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return text

    def type(self, text):
        os.write(self.master, text if isinstance(text, bytes) else text.encode() + b"\r")

    def ended(self):
        """The exit code, once the program has ended."""
        while True:
            try:
                if not os.read(self.master, 65536):
                    break
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        os.close(self.master)
        return os.waitstatus_to_exitcode(status)


class Canned(BaseHTTPRequestHandler):
    """A server whose model thinks, then calls a tool, then tells what the tool returned."""

    asked = []

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer("application/json", json.dumps({"data": [{"id": "canned"}]}))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        last = body["messages"][-1]
        if last["role"] == "tool":
            deltas, finish = [{"content": f"It is {last['content']}."}], "stop"
        else:
            function = {"name": "weather", "arguments": '{"city": "Ulm"}'}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            deltas = [{"reasoning_content": "Where is it?"}, {"tool_calls": [call]}]
            finish = "tool_calls"
        chunks = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
        self.answer("text/event-stream", events + "data: [DONE]\n\n")

    def answer(self, kind, text):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


def check_conversation(binary, url, model):
    terminal = Terminal(binary, "chat", url, "--temperature", "0", "--max-tokens", "4000")
    greeting = terminal.until(PROMPT)
    assert model in greeting, greeting
    terminal.type("/models")
    assert model in terminal.until(PROMPT)
    # An answer that would go on for long: Ctrl-C ends it and not the program.
    terminal.type("Hello")
    terminal.until(r"Hello(?:\x1b\[[0-9;?]*[a-zA-Z])*\r\n")
    terminal.until(r"\S")
    terminal.type(CTRL_C)
    terminal.until(r"\(stopped\)")
    terminal.until(PROMPT)
    # At the prompt it empties the line.
    terminal.type(b"unfinished" + CTRL_C)
    terminal.until("unfinished")
    terminal.until(PROMPT)
    terminal.type("/model none-such")
    terminal.until(PROMPT)
    terminal.type("Hello again")
    terminal.until("http 404")
    terminal.until(PROMPT)
    terminal.type(CTRL_D)
    assert terminal.ended() == 0


def check_reasoning_and_tools(binary, tools):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Canned)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    terminal = Terminal(binary, "chat", url, "--tools-file", tools, "--system", "Be brief.")
    terminal.until(PROMPT)
    terminal.type("What is the weather in Ulm?")
    shown = terminal.until("weather returns" + PROMPT)
    assert "\x1b[2mWhere is it?\x1b[0m" in shown, shown
    assert 'weather({"city": "Ulm"})' in shown, shown
    terminal.type("sunny")
    terminal.until(r"It is sunny\.")
    terminal.until(PROMPT)
    terminal.type("/quit")
    assert terminal.ended() == 0
    first, second = Canned.asked
    assert first["model"] == "canned" and first["tools"][0]["function"]["name"] == "weather"
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "tool"]
    call = second["messages"][2]["tool_calls"][0]
    assert call["id"] == second["messages"][3]["tool_call_id"] == "call_1"
    assert call["function"]["arguments"] == '{"city": "Ulm"}'
    server.shutdown()


def main():
    binary, url, model, tools = sys.argv[1:]
    check_conversation(binary, url, model)
    check_reasoning_and_tools(binary, tools)


main()
