"""The same algorithms on a real network: Flower carries the messages, fedoptax supplies server and client.

`flower` and `strategy` know Flower. `wire` (trees of arrays as messages, trusting nothing), `orders` (what the server
signs), `config`, `client` (a client's round, and what it keeps), `server` (from replies to the next state), `rounds` (a
round with quorum and deadlines), `secure` and `run` (a run at the server) do not. `app`, `keys` and `local` make a
federation's files and processes.
"""
