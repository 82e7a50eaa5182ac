"""The page at `/`, in a real browser without a window: CHROMIUM URL MODEL KEY.

Speaks the browser's own protocol over its pipe. Ends with status 0 when every check holds.
"""

import json
import os
import subprocess
import sys
import tempfile

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--no-zygote",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
]
DEADLINE_MS = 60_000


class Browser:
    """A browser with one tab, which does what scripts in its page do."""

    def __init__(self, program, home):
        commands, self.commands = os.pipe()
        self.events, events = os.pipe()

        def wire():
            # Where the browser looks for its pipe; from far away, so that neither overwrites the other.
            far = [os.dup2(commands, 103), os.dup2(events, 104)]
            os.dup2(far[0], 3)
            os.dup2(far[1], 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={home}"],
            preexec_fn=wire,
            close_fds=False,
            cwd=os.path.dirname(program),
            env={"LD_LIBRARY_PATH": os.path.dirname(program) + "/lib", "HOME": home, "PATH": os.environ["PATH"]},
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self.unread, self.number, self.faults = b"", 0, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = None
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """The result of a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if getattr(self, "session", None):
            message["sessionId"] = self.session
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            event = self.next()
            if event.get("id") == self.number:
                assert "result" in event, (method, event)
                return event["result"]

    def next(self):
        while b"\0" not in self.unread:
            part = os.read(self.events, 1 << 16)
            assert part, "the browser has ended"
            self.unread += part
        message, self.unread = self.unread.split(b"\0", 1)
        event = json.loads(message)
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.faults.append(event["params"])
        if event.get("method") == "Network.requestWillBeSent":
            self.asked.append(event["params"]["request"]["url"])
        return event

    asked = []

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script):
        """The value of a script; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, condition):
        """Waits in the page until a condition holds."""
        waiting = f"""new Promise((done, late) => {{
            const look = () => ({condition}) ? done(true) : requestAnimationFrame(look);
            setTimeout(() => late("not within the deadline: " + {json.dumps(condition)}), {DEADLINE_MS});
            look();
        }})"""
        assert self.run(waiting)

    def close(self):
        self.process.kill()
        self.process.wait()


def check_page(browser, url, model, key):
    browser.open(url + "/")
    browser.until("document.getElementById('ready').textContent.includes('API key')")
    # The one fault that is there: models without a key.
    assert all("401" in json.dumps(fault) for fault in browser.faults), browser.faults
    browser.faults.clear()
    browser.run(f"key.value = {json.dumps(key)}; key.onchange()")
    browser.until("document.getElementById('ready').textContent === '· ready'")
    assert browser.run("model.value") == model
    assert f"curl {url}/v1/chat/completions" in browser.run("curl.textContent")
    browser.until("document.querySelectorAll('#fleet tbody tr, #fleet tr:has(td)').length === 2")
    row = browser.run("document.querySelector('#fleet tr:has(td)').textContent")
    assert model in row and "aggregated" in row, row
    share = browser.run("document.querySelector('#fleet meter').value")
    assert 0 <= share <= 1, share
    for turn in (1, 2):
        browser.run("text.value = 'Tell me about the <b>house</b>.'; ask.requestSubmit()")
        browser.until(f"document.querySelectorAll('.assistant').length === {turn}")
        browser.until(f"history.length === {2 * turn} && talk.lastChild.textContent.length > 0")
    assert browser.run("document.querySelectorAll('#talk b').length") == 0, "text is no markup"
    assert browser.run("document.querySelectorAll('#talk details').length") == 0, "nobody thought"
    browser.run("think.checked = true; text.value = 'Why?'; ask.requestSubmit()")
    browser.until("document.querySelector('#talk details div')?.textContent.length > 0")
    browser.until("history.length === 6")
    assert browser.run("document.querySelector('#talk details').open") is False, "thoughts are folded"
    thoughts = browser.run("document.querySelector('#talk details div').textContent")
    assert thoughts not in browser.run("history[5].content") and "think>" not in thoughts, thoughts
    assert browser.run("document.querySelectorAll('.fault').length") == 0
    for scheme in ("dark", "light"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[feature])
        colours = browser.run(
            "[getComputedStyle(document.body).color, getComputedStyle(text).backgroundColor]"
        )
        # Dark text on light, and light on dark.
        brightness = [sum(map(float, colour[4:-1].split(",")[:3])) for colour in colours]
        assert (brightness[0] < brightness[1]) == (scheme == "light"), (scheme, colours)


def check_docs(browser, url):
    browser.open(url + "/docs")
    browser.until("document.querySelector('.swagger-ui .opblock')")
    browser.until("document.body.textContent.includes('/v1/chat/completions')")
    browser.until("document.querySelector('section.models').textContent.includes('AllowedTools')")


def main():
    program, url, model, key = sys.argv[1:]
    with tempfile.TemporaryDirectory() as home:
        browser = Browser(program, home)
        try:
            check_page(browser, url, model, key)
            check_docs(browser, url)
            assert not browser.faults, browser.faults
            outside = [asked for asked in browser.asked if not asked.startswith(url)]
            assert set(outside) <= {"about:blank"}, outside
        finally:
            browser.close()


main()
