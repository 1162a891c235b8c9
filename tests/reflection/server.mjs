// A pleiad-server of the test's own, as a child process that the kernel kills when the test ends, however that ends.
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {createInterface} from 'node:readline';

export async function startServer(binary, model, socket) {
  const command = [binary, '--model', model, '--listen', `unix:${socket}`, '--metrics-listen', '127.0.0.1:0'];
  const child = spawn('setpriv', ['--pdeathsig', 'KILL', ...command], {stdio: ['ignore', 'pipe', 'inherit']});
  const exited = once(child, 'exit');
  let ready = false;
  for await (const line of createInterface({input: child.stdout})) {
    ready = line.startsWith('pleiad-server ready');
    if (ready) break;
  }
  if (!ready) throw new Error(`the server ended before it was ready: ${await exited}`);
  return {
    address: `unix:${socket}`,
    // Its exit code.
    async stop() {
      child.kill('SIGTERM');
      return (await exited)[0];
    },
  };
}
