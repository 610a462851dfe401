// Writes pino-loki.json and winston-loki.json: what these packages push, in a folder of their own:
//   npm install pino@10.4.0 pino-loki@3.0.0 winston@3.19.0 winston-loki@6.1.7 && node loggers.cjs
const fs = require('fs');
const http = require('http');
const pino = require('pino');
const winston = require('winston');
const LokiTransport = require('winston-loki');

const PUSHED = {pino: [], winston: []};
const server = http.createServer((request, response) => {
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    const body = Buffer.concat(parts);
    const type = request.headers['content-type'] || '';
    const kept = {path: request.url.replace(/^\/(pino|winston)/, ''), type, body: body.toString('base64')};
    PUSHED[request.url.split('/')[1]].push(kept);
    response.writeHead(204).end();
  });
});

function pinoLogs(port) {
  const options = {
    host: `http://127.0.0.1:${port}`, endpoint: 'pino/loki/api/v1/push', labels: {job: 'pino-train', host: 'gpu-3'},
    batching: {interval: 1},
  };
  const log = pino({base: {pid: 1, hostname: 'login-1'}}, pino.transport({target: 'pino-loki', options}));
  log.info('starting');
  for (let step = 10; step <= 50; step += 10) log.info({step, loss: 3 - step / 100}, 'trained');
  log.warn('slow loader');
  log.child({rank: 3}).error(new Error('CUDA out of memory. Tried to allocate 2.00 GiB'));
  log.flush();
}

function winstonLogs(port, job, options) {
  const {errors, timestamp, json, combine} = winston.format;
  const format = combine(errors({stack: true}), timestamp(), json());
  const host = `http://127.0.0.1:${port}/winston`;
  const transport = new LokiTransport({host, labels: {job, host: 'gpu-3'}, interval: 1, format, ...options});
  const log = winston.createLogger({transports: [transport]});
  log.info('starting');
  for (let step = 10; step <= 50; step += 10) log.info('trained', {step, loss: 3 - step / 100});
  log.error('CUDA out of memory. Tried to allocate 2.00 GiB', {rank: 3});
}

server.listen(0, '127.0.0.1', () => {
  const {port} = server.address();
  pinoLogs(port);
  winstonLogs(port, 'winston-json', {json: true});
  winstonLogs(port, 'winston-protobuf', {json: false});
  setTimeout(() => {
    for (const [name, kept] of Object.entries(PUSHED)) {
      fs.writeFileSync(`${name}-loki.json`, JSON.stringify(kept, null, 1) + '\n');
    }
    process.exit(0);
  }, 5000);
});
