// The request examples of README.md: fenced blocks whose info string is `json SERVICE/METHOD [REASON]`. A block holds
// one JSON message, or several with an empty line between them for a stream.

export function readExamples(markdown) {
  const examples = [];
  for (const [, info, body] of markdown.matchAll(/^```json (\S+\/\S+(?: \S+)?)\n([\s\S]*?)^```$/gm)) {
    const [path, reason] = info.split(' ');
    const [service, method] = path.split('/');
    const messages = body.trim().split(/\n\s*\n/).map((text) => JSON.parse(text));
    examples.push({service, method, reason, messages});
  }
  return examples;
}

// Puts values in the place of strings like "<sequence_id>".
export function fill(value, values) {
  if (Array.isArray(value)) return value.map((item) => fill(item, values));
  if (value !== null && typeof value === 'object') {
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, fill(item, values)]));
  }
  const name = typeof value === 'string' ? /^<(\w+)>$/.exec(value)?.[1] : undefined;
  if (name === undefined) return value;
  if (!(name in values)) throw new Error(`nothing before gave a value for <${name}>`);
  return values[name];
}

// Throws on a key or an enum value that `type` (of protobufjs) does not have: the library would drop it in silence.
export function checkKeys(value, type, path = type.name) {
  for (const [key, item] of Object.entries(value)) {
    const field = type.fields[key];
    if (field === undefined) throw new Error(`${path} has no field ${key}`);
    const resolved = field.resolve().resolvedType;
    for (const one of field.repeated ? item : [item]) {
      if (resolved?.fields) checkKeys(one, resolved, `${path}.${key}`);
      if (resolved?.values && !(one in resolved.values)) throw new Error(`${path}.${key} has no value ${one}`);
    }
  }
}
