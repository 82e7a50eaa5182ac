"""What the scripts of clients share: arguments, a run of checks, an error that must come."""

import sys
from concurrent.futures import ThreadPoolExecutor

base_url, model = sys.argv[1:3]
question = "Tell me about the garden and the house."


def run(*checks):
    """Runs each check; the first that fails ends the process with a status other than 0."""
    for check in checks:
        check()
        print("ok", check.__name__, flush=True)


def run_together(*checks):
    """Runs all checks at the same time; one that fails ends the process with a status other than 0."""
    with ThreadPoolExecutor(len(checks)) as pool:
        for check, done in [(check, pool.submit(check)) for check in checks]:
            done.result()
            print("ok", check.__name__, flush=True)


def pause():
    """Says so, and goes on with the next line of standard input."""
    print("pauses", flush=True)
    sys.stdin.readline()


def raised(kind, call):
    """The exception of this kind that `call` raises."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def fields(kind):
    """The fields of a type of an official client's parameters."""
    return set(kind.__annotations__) | kind.__required_keys__ | kind.__optional_keys__
