# SPDX-License-Identifier: Apache-2.0
"""one.py MODULE.CLASS.TEST - runs one test in this process."""

import sys
import unittest

result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(result)
for _, text in result.errors + result.failures:
    print(text, end="")
for _, reason in result.skipped:
    print("skipped:", reason)
if result.skipped:
    sys.exit(77)
sys.exit(not (result.wasSuccessful() and result.testsRun == 1))
