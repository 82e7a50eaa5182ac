"""What the scripts of clients share: arguments, a run of checks, an error that must come."""

import sys

base_url, model = sys.argv[1:3]
question = "Tell me about the garden and the house."


def run(*checks):
    """Runs each check; the first that fails ends the process with a status other than 0."""
    for check in checks:
        check()
        print("ok", check.__name__, flush=True)


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
