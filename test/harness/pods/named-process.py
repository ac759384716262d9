"""A process that is called as it is told, with threads that are called so: named-process.py COMM [THREAD-COMM...]
Says "ready" once it is. Each line of its input begins another thread of that name, or, with a "-" before the name, ends
one, and is answered with "done". Ends with its input."""
import sys
import threading

ends = {}


def begin(comm):
    named = threading.Event()
    end = threading.Event()

    def run():
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "w") as file:
            file.write(comm)
        named.set()
        end.wait()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    named.wait()
    ends[comm] = (end, thread)


for name in sys.argv[2:]:
    begin(name)
with open("/proc/self/comm", "w") as file:
    file.write(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    line = line.rstrip("\n")
    if line.startswith("-"):
        end, thread = ends.pop(line[1:])
        end.set()
        thread.join()
    else:
        begin(line)
    print("done", flush=True)
