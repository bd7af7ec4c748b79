# SPDX-License-Identifier: Apache-2.0
"""Reads Prometheus' text format from standard input and fails where a line is not of it: each
family has HELP and TYPE, in that order, before its samples, which are together and unique."""
import re
import sys

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"({NAME})(\{{{LABEL}(?:,{LABEL})*\}})? ([-+0-9.eE]+)")
family, typed, families, samples = None, False, set(), set()
for line in sys.stdin.read().splitlines():
    if match := re.fullmatch(rf"# HELP ({NAME}) (.+)", line):
        family, typed = match[1], False
        assert family not in families, f"twice: {line}"
        families.add(family)
    elif match := re.fullmatch(rf"# TYPE ({NAME}) (gauge|counter)", line):
        assert match[1] == family and not typed, f"not after its HELP: {line}"
        typed = True
    else:
        match = SAMPLE.fullmatch(line)
        assert match, f"no sample: {line}"
        assert match[1] == family and typed, f"not in its family: {line}"
        assert (match[1], match[2]) not in samples, f"twice: {line}"
        samples.add((match[1], match[2]))
        float(match[3])
assert families, "nothing"
