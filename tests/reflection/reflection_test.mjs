// A client that knows nothing of the service calls it: it asks the server for its services by reflection, and sends
// the examples of README.md.
//   node --test reflection_test.mjs, with REFLECTION_SERVER (the binary) and REFLECTION_ROOT (the repository)
import assert from 'node:assert/strict';
import {mkdtempSync, readFileSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {after, before, test} from 'node:test';

import grpc from '@grpc/grpc-js';
import {GrpcReflection} from 'grpc-js-reflection-client';

import {checkKeys, fill, readExamples} from './examples.mjs';
import {startServer} from './server.mjs';

const root = process.env.REFLECTION_ROOT;
const insecure = grpc.credentials.createInsecure();
const loader = {keepCase: true, longs: String, enums: String, bytes: String, defaults: true};
const folder = mkdtempSync(join(tmpdir(), 'pleiad-reflection-'));
let server, reflection;

before(async () => {
  server = await startServer(process.env.REFLECTION_SERVER, join(root, 'tests/golden/tiny-n3h8'),
                             join(folder, 'socket'));
  reflection = new GrpcReflection(server.address, insecure);
});
after(async () => {
  const code = await server.stop();
  rmSync(folder, {recursive: true});
  assert.equal(code, 0);
});

async function describe(service) {
  const descriptor = await reflection.getDescriptorBySymbol(service);
  const types = descriptor.getProtobufJsRoot();
  types.resolveAll();
  const Client = service.split('.').reduce((scope, name) => scope[name], descriptor.getPackageObject(loader));
  return {types, methods: types.lookupService(service).methods, client: new Client(server.address, insecure)};
}

// {error, responses} of one call, unary or stream.
function call(client, name, method, messages) {
  return new Promise((resolve) => {
    if (!method.requestStream) {
      client[name](messages[0], (error, response) => resolve({error, responses: error ? [] : [response]}));
      return;
    }
    const responses = [];
    const stream = client[name]();
    stream.on('data', (response) => responses.push(response));
    stream.on('error', (error) => resolve({error, responses}));
    stream.on('end', () => resolve({error: null, responses}));
    for (const message of messages) stream.write(message);
    stream.end();
  });
}

test('reflection lists the services', async () => {
  assert.deepEqual((await reflection.listServices()).sort(),
                   ['grpc.health.v1.Health', 'grpc.reflection.v1alpha.ServerReflection', 'pleiad.v1.Ple']);
});

test('the examples of README.md call every RPC and get what they say', async () => {
  const examples = readExamples(readFileSync(join(root, 'README.md'), 'utf8'));
  const services = new Map();
  for (const name of ['pleiad.v1.Ple', 'grpc.health.v1.Health']) services.set(name, await describe(name));

  const shown = new Set(examples.filter((e) => e.service === 'pleiad.v1.Ple').map((e) => e.method));
  assert.deepEqual([...shown].sort(), Object.keys(services.get('pleiad.v1.Ple').methods).sort());

  const Status = services.get('pleiad.v1.Ple').types.lookupType('pleiad.v1.Status');
  const Reason = services.get('pleiad.v1.Ple').types.lookupEnum('pleiad.v1.Reason');
  const values = {};
  for (const {service, method, reason, messages} of examples) {
    const {types, methods, client} = services.get(service);
    assert.ok(methods[method], `${service} has no ${method}`);
    const requests = fill(messages, values);
    for (const request of requests) checkKeys(request, types.lookupTypeOrEnum(methods[method].requestType, true));
    const {error, responses} = await call(client, method, methods[method], requests);

    if (reason !== undefined) {
      assert.ok(error, `${method}: ${reason} expected`);
      const status = Status.decode(error.metadata.get('pleiad-status-bin')[0]);
      assert.equal(status.code, error.code);
      assert.equal(Reason.valuesById[status.details[0].reason], `REASON_${reason}`);
      continue;
    }
    assert.equal(error, null, `${method}: ${error}`);
    assert.equal(responses.length, requests.length, method);
    for (const response of responses) {
      if (response.status?.message !== undefined) assert.equal(response.status.code, 0, `${method}: ${response.status.message}`);
      if (response.sequence_id) values.sequence_id = response.sequence_id;
      if (response.layers?.[0]?.aux) values.aux = response.layers[0].aux;
      if (response.model_id) values.model_id = response.model_id;
    }
    expectations[method]?.(responses, requests);
  }
  for (const {client} of services.values()) client.close();
});

// What an answer must hold beyond its status.
const highwayBytes = (tokens) => tokens * 512 * 4;
const bytesOf = (base64) => Buffer.from(base64, 'base64').length;
const expectations = {
  GetModel: ([model]) => assert.deepEqual(model.layers.map((layer) => layer.layer_index), [1]),
  OpenSequence: ([opened]) => assert.notEqual(opened.sequence_id, '0'),
  Forward: ([response], [request]) => {
    assert.equal(response.request_id, String(request.request_id));
    assert.equal(response.segments[0].position, String(request.token_ids.length));
    assert.equal(bytesOf(response.output.data), highwayBytes(request.token_ids.length));
  },
  ForwardStream: (responses, requests) => {
    assert.deepEqual(responses.map((r) => r.request_id), requests.map((r) => String(r.request_id)));
    assert.equal(responses.at(-1).segments[0].position, '5');
  },
  Lookup: ([response], [request]) => {
    assert.equal(response.row_ids.length, request.token_ids.length * 16);
    assert.equal(bytesOf(response.embeddings.data), request.token_ids.length * 128 * 2);
  },
  GetSequence: ([response]) => assert.equal(response.layers[0].position, '5'),
  Snapshot: ([response]) => assert.equal(bytesOf(response.layers[0].aux), 4 + 2 * 4 + 9 * 512 * 4),
  Release: ([response]) => assert.equal(response.released, true),
  Check: ([response]) => assert.equal(response.status, 'SERVING'),
};

test('an example with a misspelt field would be noticed', async () => {
  const {types, client} = await describe('pleiad.v1.Ple');
  const type = types.lookupType('pleiad.v1.ForwardRequest');
  assert.throws(() => checkKeys({segments: [{numTokens: 1}]}, type), /ForwardRequest.segments has no field numTokens/);
  assert.throws(() => checkKeys({mode: 'MODE_BACKWARD'}, type), /has no value MODE_BACKWARD/);
  client.close();
});
