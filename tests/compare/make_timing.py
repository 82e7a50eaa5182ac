"""Writes a timing table for Dynamo's mock engine in which a decode step takes the same time whatever
the batch, so that every stream gets a token every STEP_MS.

usage: make_timing.py FILE.npz STEP_MS

Source: the arrays that `dynamo.mocker --planner-profile-data` of Dynamo 1.6.1 reads: prefill time in
milliseconds by input length, and time of a decode step by active KV tokens and context length.
"""

import sys

import numpy

PREFILL_MS = 0.01


def main(path, step_ms):
    """Writes the table; between its points the mock engine interpolates."""
    lengths = numpy.array([1.0, 4_096.0, 131_072.0])
    active = numpy.array([0.0, 1e6, 1e8])
    numpy.savez(
        path,
        prefill_isl=lengths,
        prefill_ttft_ms=numpy.full(lengths.size, PREFILL_MS),
        decode_active_kv_tokens=active,
        decode_context_length=lengths,
        decode_itl=numpy.full((active.size, lengths.size), step_ms),
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], float(sys.argv[2]))
