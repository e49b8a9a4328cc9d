"""The same algorithms on a real network: Flower carries the messages, fedoptax supplies server and client.

`flower`, `worker` and `supernode` know Flower. `wire` (trees of arrays as messages, trusting nothing),
`orders` (what the server signs), `config`, `client` (its round and its states), `server` (from replies to the next
state), `rounds` (quorum and deadlines), `evaluation`, `secure` and `deployment` (a run at the server) do not. `app`,
`keys`, `proxy` and `local` make a federation's files and processes.
"""
