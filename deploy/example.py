#!/usr/bin/python3
"""Two steps, a rewind, a snapshot and a release, from Python.
Needs python3-grpcio, python3-protobuf and protobuf-compiler."""
import argparse, pathlib, subprocess, sys, tempfile
import grpc

with tempfile.TemporaryDirectory() as stubs:  # messages by protoc; methods by name below
    proto = pathlib.Path(__file__).resolve().parent.parent / "proto"
    subprocess.run(["protoc", f"-I{proto}", f"--python_out={stubs}", "pleiad/v1/ple.proto"], check=True)
    sys.path.insert(0, stubs)
    from pleiad.v1 import ple_pb2 as pb
flags = argparse.ArgumentParser(description=__doc__)
flags.add_argument("address", nargs="?", default="127.0.0.1:50051", metavar="HOST:PORT | unix:PATH")
flags.add_argument("--tls-ca", type=pathlib.Path, metavar="FILE", help="PEM of the server's authority; without it: plaintext")
flags.add_argument("--tls-cert", type=pathlib.Path, metavar="FILE", help="PEM of the client's own certificate")
flags.add_argument("--tls-key", type=pathlib.Path, metavar="FILE", help="PEM of its key")
flags.add_argument("--token-file", type=pathlib.Path, metavar="FILE", help="the token, alone; over TLS or within this machine")
flags = flags.parse_args()
metadata = [("authorization", f"Bearer {flags.token_file.read_text().strip()}")] if flags.token_file else []

def channel_to(address, options=()):
    if not flags.tls_ca:
        return grpc.insecure_channel(address, options)
    own = [flags.tls_key.read_bytes(), flags.tls_cert.read_bytes()] if flags.tls_cert else [None, None]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(flags.tls_ca.read_bytes(), *own), options)

def method(channel, name, request, response, kind="unary_unary"):
    call = getattr(channel, kind)(f"/pleiad.v1.Ple/{name}", request.SerializeToString, response.FromString)
    return lambda message: call(message, metadata=metadata)

small = channel_to(flags.address)
model = method(small, "GetModel", pb.GetModelRequest, pb.GetModelResponse)(pb.GetModelRequest())
largest = min(2 * model.limits.max_message_bytes + sum(layer.aux_bytes for layer in model.layers), 2**31 - 1)
channel = channel_to(flags.address, [("grpc.max_receive_message_length", largest)])
layer, channels = model.layers[0].layer_index, model.geometry.channels
print(f"model {model.model_id} on {model.device}: layer {layer}, {channels} channels")
opened = method(channel, "OpenSequence", pb.OpenSequenceRequest, pb.OpenSequenceResponse)(
    pb.OpenSequenceRequest(label="example.py"))

def step(request_id, tokens, position):  # the highway is F32 [tokens, channels]; `zeros` sends none
    segment = pb.Segment(sequence_id=opened.sequence_id, num_tokens=len(tokens), position=position)
    return pb.ForwardRequest(request_id=request_id, epoch=1, layer_index=layer, segments=[segment], token_ids=tokens,
                             highway=pb.Tensor(dtype=pb.DTYPE_F32, zeros=True))

steps = [step(1, [11, 22, 33], 0), step(2, [44, 55], 3), step(3, [66], 4)]  # the third drops token 55 again
for reply in method(channel, "ForwardStream", pb.ForwardRequest, pb.ForwardResponse, "stream_stream")(iter(steps)):
    if reply.status.code:
        sys.exit(f"step {reply.request_id}: {reply.status.message}")
    print(f"step {reply.request_id}: position {reply.segments[0].position}, {len(reply.output.data)} bytes")

named = dict(sequence_id=opened.sequence_id, epoch=1)
blob = method(channel, "Snapshot", pb.SnapshotRequest, pb.SnapshotResponse)(
    pb.SnapshotRequest(layer_index=layer, **named)).layers[0]
print(f"snapshot: position {blob.position}, {len(blob.aux)} bytes")
print("released:", method(channel, "Release", pb.ReleaseRequest, pb.ReleaseResponse)(pb.ReleaseRequest(**named)).released)
