#!/usr/bin/env python3
"""Measures how soon a proxy acts on what discovery knows: a lost lease, a deleted pod.

usage: leaves.py STATOR MODEL KUBE [ROUNDS]

STATOR is the binary, MODEL a folder with a tokenizer, KUBE the folder of the tests' API server. Each
round starts an agent with the pretend vLLM of deaths.py and waits until a proxy counts its worker. Then
the agent is stopped, so that its lease in etcd ends while its connections stay, or its pod is deleted.
Time counts from the moment when a watch of this script's own hears of it; the proxy is asked for its
number of workers again and again until it is 0. Prints a table of milliseconds, which include half of
the way of one question.
"""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import statistics
import sys
import tempfile
import threading
import time

import deaths
from deaths import Process, until

CRD = pathlib.Path(__file__).parents[3] / "manifests/agents/crd.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
PODS = "/api/v1/namespaces/default/pods"
TOKEN = "leaves"


class Heard:
    """The time at which the first line with `what` came from a response that does not end."""

    def __init__(self, response, what):
        self.response, self.what, self.at = response, what, None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        while line := self.response.readline():
            if self.what in line:
                self.at = time.monotonic()
                return

    def time(self):
        self.thread.join(60)
        return self.at or sys.exit(f"{self.what} was not heard within 60 s")


class Etcd:
    """Agents register with leases."""

    def __init__(self, kube, home):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.process = Process(f"{kube}/kube", "-etcd", "-dir", f"{home}/etcd", "-port", port)
        self.host = self.process.line("http").strip().partition("://")[2]

    def flags(self, number):
        source = f"--discovery=etcd://{self.host}/fleet/{number}"
        return [source], [source]

    def ends(self, agent, pid):
        connection = http.client.HTTPConnection(self.host)
        everything = base64.b64encode(b"\0").decode()
        watch = {"create_request": {"key": everything, "range_end": everything}}
        connection.request("POST", "/v3/watch", json.dumps(watch))
        heard = Heard(connection.getresponse(), b"DELETE")
        for child in (agent.child.pid, pid):
            os.kill(child, signal.SIGSTOP)
        return heard


class Kubernetes:
    """Agents write resources that belong to their pods."""

    def __init__(self, kube, home):
        place = pathlib.Path(home, "kube")
        self.process = Process(f"{kube}/kube", "-dir", place, "-token", TOKEN, "-port", "0")
        self.url = self.process.line("https://").strip()
        self.authority = place / "apiserver.crt"
        self.config = pathlib.Path(home, "kubeconfig")
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": TOKEN}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }))
        self.ask("POST", CRDS, CRD.read_text(), "application/yaml")

    def open(self, method, path, body=None, kind="application/json"):
        secure = ssl.create_default_context(cafile=self.authority)
        connection = http.client.HTTPSConnection(self.url.partition("://")[2], context=secure)
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": kind}
        connection.request(method, path, body, headers)
        return connection.getresponse()

    def ask(self, method, path, body, kind="application/json"):
        response = self.open(method, path, body if isinstance(body, str) else json.dumps(body), kind)
        answer = json.loads(response.read())
        return answer if response.status < 300 else sys.exit(f"{method} {path}: {answer}")

    def flags(self, number):
        self.pod = f"agent-{number}"
        spec = {"nodeName": "node", "containers": [{"name": "engine", "image": "engine"}]}
        pod = {"metadata": {"name": self.pod, "labels": {"app": "agent"}}, "spec": spec}
        uid = self.ask("POST", PODS, pod)["metadata"]["uid"]
        status = {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}],
                  "conditions": [{"type": "Ready", "status": "True"}]}
        kind = "application/merge-patch+json"
        self.ask("PATCH", f"{PODS}/{self.pod}/status", {"status": status}, kind)
        source = f"--discovery=kubernetes://default?kubeconfig={self.config}"
        return [f"{source}&pod={self.pod}&uid={uid}"], [f"{source}&selector=app=agent"]

    def ends(self, agent, pid):
        heard = Heard(self.open("GET", f"{PODS}?watch=1&fieldSelector=metadata.name={self.pod}"), b"DELETED")
        self.ask("DELETE", f"{PODS}/{self.pod}", {"gracePeriodSeconds": 0})
        return heard


def round_of(stator, model, backend, number):
    """Milliseconds from what a watch hears to a proxy without a worker."""
    of_agent, of_proxy = backend.flags(number)
    plane = ["--listen=127.0.0.1:0", "--events-listen=tcp://127.0.0.1:0", "--replay-listen=tcp://127.0.0.1:0"]
    proxy = Process(stator, "proxy", "--http-port=0", "--metrics-port=0", *of_proxy)
    engine = ["--engine=vllm", f"--engine-program={os.path.abspath(deaths.__file__)}", f"--model={model}"]
    agent = Process(stator, "agent", *engine, *plane, "--metrics-port=0", "--agent-id=a", *of_agent)
    connection = http.client.HTTPConnection(proxy.event("listening")["address"])
    until(1, connection)
    pid = agent.event("engine started")["pid"]
    heard = backend.ends(agent, pid)
    took = until(0, connection) - heard.time()
    for process in (agent, proxy):
        process.end()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return took * 1000


def main(stator, model, kube, rounds=10):
    with tempfile.TemporaryDirectory() as home:
        print("| what is known | median ms | longest ms |\n| --- | --- | --- |")
        for what, kind in (("a lost lease, etcd", Etcd), ("a deleted pod, Kubernetes", Kubernetes)):
            backend = kind(os.path.abspath(kube), home)
            took = [round_of(stator, model, backend, number) for number in range(int(rounds))]
            print(f"| {what} | {statistics.median(took):.1f} | {max(took):.1f} |", flush=True)
            backend.process.end()


if __name__ == "__main__":
    if len(sys.argv) in (4, 5):
        main(*sys.argv[1:])
    else:
        sys.exit(__doc__)
