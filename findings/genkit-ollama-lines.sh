#!/usr/bin/env bash
# genkitx-ollama 1.42.0 parses each network read of a stream as one JSON document. ollama's API sends JSON lines, and a read
# may return two of them: then the stream ends with a SyntaxError. Seen on 2026-11-30: the lines at the end. It needs Node.
. "$(dirname "$0")/common.sh"
cd "$work"
npm install --no-audit --no-fund --loglevel=error genkit@1.42.0 genkitx-ollama@1.42.0 > npm.log
cat > lines.mjs <<'END'
import http from 'node:http'
import { genkit } from 'genkit'
import { ollama } from 'genkitx-ollama'
const line = (content, done) => JSON.stringify({ model: 'm', message: { role: 'assistant', content }, done }) + '\n'
const writes = { one: [line('a', false), line('b', false), line('', true)], two: [line('a', false) + line('b', false), line('', true)] }
for (const [name, parts] of Object.entries(writes)) {
  const server = http.createServer(async (_, response) => {
    for (const part of parts) { response.write(part); await new Promise(done => setTimeout(done, 200)) }
    response.end()
  }).listen(0)
  const plugin = ollama({ models: [{ name: 'm', type: 'chat' }], serverAddress: `http://127.0.0.1:${server.address().port}` })
  const { stream, response } = genkit({ plugins: [plugin] }).generateStream({ model: 'ollama/m', prompt: 'q' })
  response.catch(() => {})
  let text = ''
  try { for await (const chunk of stream) text += chunk.text } catch (error) { text = error.name }
  console.log(`${name} per write: ${text}`)
}
process.exit(0)
END
seen=$(node lines.mjs 2> node.log | grep 'per write')
echo "$seen"
expect "$(echo "$seen" | paste -sd ' ')" "one per write: ab two per write: SyntaxError"
