"""A client of the service, and a server of one's own, from Python: messages out of a FileDescriptorSet, no stubs.

GPU_BUNDLE names an unpacked bundle (tests/gpu/bundle.sh); without it build/release and protoc serve.
"""
import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import tempfile

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUNDLE = os.environ.get("GPU_BUNDLE", "")
LIBC = ctypes.CDLL(None)


def _messages():
    """Message classes of pleiad.v1 by their short names; the enums' values too."""
    if BUNDLE:
        data = (pathlib.Path(BUNDLE) / "pleiad.protoset").read_bytes()
    else:
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run(["protoc", f"-I{ROOT}/proto", "--include_imports", f"--descriptor_set_out={out.name}",
                            "pleiad/v1/ple.proto"], check=True)
            data = pathlib.Path(out.name).read_bytes()
    pool = descriptor_pool.DescriptorPool()
    names = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
        names.update({message.name: f"{file.package}.{message.name}" for message in file.message_type})
        for enum in file.enum_type:
            names.update({value.name: value.number for value in enum.value})
    if hasattr(message_factory, "GetMessageClass"):
        make = message_factory.GetMessageClass
    else:
        make = message_factory.MessageFactory(pool).GetPrototype
    return {name: make(pool.FindMessageTypeByName(full)) if isinstance(full, str) else full
            for name, full in names.items()}


pb = argparse.Namespace(**_messages())


def to_bf16(values):
    """Round-to-nearest-even BF16 of finite F32 values, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(values):
    return (np.ascontiguousarray(values, np.uint16).astype(np.uint32) << 16).view(np.float32)


def binary(name):
    """A program of the bundle, else of build/release; the environment it wants."""
    folder = {"pleiad-server": "server", "pleiad": "client/cli"}[name]
    base = pathlib.Path(BUNDLE) / "build" if BUNDLE else ROOT / "build/release"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PLEIAD_")}  # those are flags
    if BUNDLE:
        environment["LD_LIBRARY_PATH"] = f"{BUNDLE}/lib"
    return str(base / folder / name), environment


def _end_with(parent):
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no server outlives the script
    if os.getppid() != parent:
        os._exit(127)


class Server:
    """`with Server(model, "--device", "cuda") as server:` ready inside; must end with 0 when left without an error."""

    def __init__(self, model, *flags):
        self.model, self.flags = str(model), [str(flag) for flag in flags]

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="pleiad-"))
            self.address = f"unix:{folder}/socket"
            self.log_path = f"{folder}/log"
            program, environment = binary("pleiad-server")
            parent = os.getpid()
            with open(self.log_path, "w") as log:
                self.process = subprocess.Popen(
                    [program, "--model", self.model, "--listen", self.address, "--metrics-listen", "127.0.0.1:0",
                     "--drain-timeout", "2s"] + self.flags,
                    stdout=subprocess.PIPE, stderr=log, text=True, env=environment, preexec_fn=lambda: _end_with(parent))
            stack.callback(self.process.wait)
            stack.callback(self.process.kill)
            line = self.process.stdout.readline()
            if not line.startswith("pleiad-server ready"):
                raise RuntimeError(f"pleiad-server did not get ready: {line!r}\n{self.log()}")
            self.metrics_address = line.split()[-1]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind, *_):
        with self._stack:
            if kind is not None:
                print(f"log of pleiad-server, its end:\n{self.log()[-4000:]}", file=sys.stderr)
                return
            self.process.terminate()
            code = self.process.wait(timeout=60)
            self.process.stdout.close()
            if code != 0:
                raise RuntimeError(f"pleiad-server ended with {code}\n{self.log()}")

    def log(self):
        return pathlib.Path(self.log_path).read_text(errors="replace")

    def resident_kib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        return 0

    def metrics(self):
        """The metrics page as {'name{labels}': value}."""
        import urllib.request
        url = self.metrics_address if "://" in self.metrics_address else f"http://{self.metrics_address}/metrics"
        with urllib.request.urlopen(url) as page:
            lines = page.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line and line[0] != "#"}


class StepFailed(RuntimeError):
    def __init__(self, status):
        super().__init__(f"step failed with code {status.code}: {status.message}")
        self.status = status


class Client:
    """Blocking calls to one server. `layer` is its first PLE layer, `channels` the width of its highway."""

    def __init__(self, address):
        small = grpc.insecure_channel(address)
        self.model = self._method(small, "GetModel")(pb.GetModelRequest(), timeout=30)
        small.close()
        largest = min(2 * self.model.limits.max_message_bytes, 2**31 - 1)
        self._channel = grpc.insecure_channel(address, options=[
            ("grpc.max_receive_message_length", largest), ("grpc.max_send_message_length", -1)])
        self.layer = self.model.layers[0].layer_index
        self.channels = self.model.geometry.channels

    def close(self):
        self._channel.close()

    @staticmethod
    def _method(channel, name, kind="unary_unary"):
        request, response = ("ForwardRequest", "ForwardResponse") if name == "ForwardStream" else (f"{name}Request", f"{name}Response")
        return getattr(channel, kind)(f"/pleiad.v1.Ple/{name}",
                                      request_serializer=lambda message: message.SerializeToString(),
                                      response_deserializer=getattr(pb, response).FromString)

    def call(self, rpc, **fields):
        return self._method(self._channel, rpc)(getattr(pb, f"{rpc}Request")(**fields), timeout=120)

    def open(self, layers=()):
        return self.call("OpenSequence", label="tests/gpu", layers=layers).sequence_id

    def snapshot(self, sequence):
        """The carries of a sequence, as Open and Restore take them."""
        return list(self.call("Snapshot", sequence_id=sequence).layers)

    def restore(self, sequence, layers):
        self.call("Restore", sequence_id=sequence, layers=layers)

    def release(self, sequence):
        return self.call("Release", sequence_id=sequence).released

    def attach_and_detach(self, path, size):
        """Attaches a file of --shm-dir and lets it go."""
        requests = queue.SimpleQueue()
        replies = self._method(self._channel, "AttachRegions", "stream_stream")(iter(requests.get, None))
        requests.put(pb.AttachRegionsRequest(kind=pb.REGION_KIND_SHM_FILE, path=path, bytes=size))
        status = next(replies).status
        requests.put(None)
        for _ in replies:
            pass
        if status.code:
            raise StepFailed(status)

    def lookup(self, segments, tokens):
        """(row ids [tokens, heads], embeddings BF16 [tokens, E]); segments are (num_tokens, context_ids)."""
        reply = self.call("Lookup", layer_index=self.layer, token_ids=[int(t) for t in tokens], want_row_ids=True,
                          want_embeddings=True,
                          segments=[pb.LookupSegment(num_tokens=n, context_ids=context) for n, context in segments])
        ids = np.array(reply.row_ids, np.uint64).reshape(len(tokens), -1)
        return ids, np.frombuffer(reply.embeddings.data, np.uint16).reshape(len(tokens), -1)

    def request(self, segments, tokens, highway, request_id=1, delta=False, output_bf16=None):
        """A ForwardRequest. `segments` are (sequence, tokens, position or None, fresh); `highway` F32, or BF16 as uint16."""
        wire = []
        for sequence, num_tokens, position, fresh in segments:
            segment = pb.Segment(sequence_id=sequence, num_tokens=num_tokens, fresh=fresh)
            if position is not None:
                segment.position = position
            wire.append(segment)
        dtype = {np.dtype(np.float32): pb.DTYPE_F32, np.dtype(np.uint16): pb.DTYPE_BF16}[highway.dtype]
        output = pb.Output(kind=pb.OUTPUT_KIND_DELTA if delta else pb.OUTPUT_KIND_HIGHWAY)
        if output_bf16 is not None:
            output.dtype = pb.DTYPE_BF16 if output_bf16 else pb.DTYPE_F32
        return pb.ForwardRequest(request_id=request_id, layer_index=self.layer, segments=wire,
                                 token_ids=[int(t) for t in tokens], output=output,
                                 highway=pb.Tensor(dtype=dtype, data=np.ascontiguousarray(highway).tobytes()))

    def tensor(self, response):
        """The output of a step as [tokens, channels], F32 or BF16 as uint16; StepFailed when it failed."""
        if response.status.code:
            raise StepFailed(response.status)
        kind = np.uint16 if response.output.dtype == pb.DTYPE_BF16 else np.float32
        return np.frombuffer(response.output.data, kind).reshape(-1, self.channels)

    def forward(self, segments, tokens, highway, **options):
        """One step by the unary call; its tensor."""
        request = self.request(segments, tokens, highway, **options)
        return self.tensor(self._method(self._channel, "Forward")(request, timeout=120))

    def stream(self):
        return Stream(self)


class Stream:
    """Steps over one ForwardStream, many in flight; answers are had by the request's id, in any order."""

    def __init__(self, client):
        self._client = client
        self._requests = queue.SimpleQueue()
        self._answers = {}
        self._next_id = 0
        self._replies = client._method(client._channel, "ForwardStream", "stream_stream")(iter(self._requests.get, None))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        self._requests.put(None)
        if kind is None:
            for _ in self._replies:
                pass
        else:
            self._replies.cancel()

    def send(self, segments, tokens, highway, **options):
        self._next_id += 1
        self._requests.put(self._client.request(segments, tokens, highway, request_id=self._next_id, **options))
        return self._next_id

    def response(self, request_id):
        while request_id not in self._answers:
            reply = next(self._replies)
            self._answers[reply.request_id] = reply
        return self._answers.pop(request_id)

    def result(self, request_id):
        return self._client.tensor(self.response(request_id))


class Report:
    """Lines for a reader, figures for a file, and whether all checks held."""

    def __init__(self, args):
        self._table = args.table
        self._json = getattr(args, "json", None)
        self.figures = {}
        self.failed = 0

    def line(self, text=""):
        print(text)
        if self._table:
            with open(self._table, "a") as file:
                file.write(text + "\n")

    def check(self, holds, text):
        self.failed += not holds
        self.line(f"  {'ok    ' if holds else 'FAILED'} {text}")

    def save(self):
        if self._json:
            pathlib.Path(self._json).write_text(json.dumps(self.figures, indent=1) + "\n")

    def finish(self):
        """The exit code: 1 when a check did not hold."""
        self.save()
        return 1 if self.failed else 0


def arguments(description):
    """A parser with the flags that every script here has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--table", help="file that gets a copy of the lines meant for a reader")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--device", default="cuda", help="of pleiad-server (default: cuda)")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def relative_l2(ours, truth):
    """|ours - truth| / |truth|; NaN anywhere gives NaN, which passes no bound."""
    ours, truth = np.asarray(ours, np.float64), np.asarray(truth, np.float64)
    return float(np.linalg.norm(ours - truth) / np.linalg.norm(truth))
