"""Doubles and a harness for tests: of agents, and of this package itself.

`tallystick.testing.agents` has `AgentTest`, the object behind the pytest fixture `tally`, which
`tallystick.testing.plugin` makes. The other modules are doubles behind the same ports as the real
parts: a model, a sandbox, and ledgers that stop where a test says.
"""
