# SPDX-License-Identifier: Apache-2.0
"""standin.py FOLDER ANSWERS LOG - listens as a process under stayput would, and gives the
answers of a file: {"pause": [{...}, ...], ...}, one list a verb. "close" in a list ends the
connection there, "hang" never answers, any other text goes out as it is. Requests are
appended to LOG. Prints "ready" once it listens. Shows what no real process does at will:
progress at given times, each error, garbage."""
import json
import os
import socket
import sys

folder, answers, log = sys.argv[1:4]
os.makedirs(folder, mode=0o700, exist_ok=True)
path = os.path.join(folder, f"{os.getpid()}.sock")
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o600)
listener.listen(8)
with open(answers, encoding="utf-8") as file:
    answers = json.load(file)
print("ready", flush=True)


def serve(connection):
    for line in connection.makefile("r", encoding="utf-8"):
        with open(log, "a", encoding="utf-8") as file:
            file.write(line)
        for answer in answers.get(json.loads(line)["do"], ["close"]):
            if answer == "close":
                return
            if answer == "hang":
                break
            text = answer if isinstance(answer, str) else json.dumps(answer)
            connection.sendall(text.replace("PID", str(os.getpid())).encode() + b"\n")


held = []
while True:
    connection, _ = listener.accept()
    held.append(connection)
    if os.fork() == 0:
        listener.close()
        serve(connection)
        connection.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    held.pop().close()
