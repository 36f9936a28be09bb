# Thin doors to `cargo xtask`, which holds the work. `make demo` and `make test` are the two to know.

.PHONY: demo test ci tidy bench

# A whole cluster on this machine, losing a node and getting it back.
demo:
	cargo xtask demo

# Everything that continuous integration runs.
test:
	cargo xtask test

ci: test

# Style as a test.
tidy:
	cargo xtask tidy

# Speed, beside other servers and the raw disk: a quarter of an hour or so, or `MODE=full`, more than three hours (docs/bench.md); `COMPARE=REV` for another revision.
# What `NAME=` says is what the files in bench/results are called; git ignores those of `latest`.
NAME = latest
bench:
	cargo xtask bench $(if $(COMPARE),--compare $(COMPARE)) -- $(if $(filter full,$(MODE)),--full) $(if $(TABLES),--tables $(TABLES)) --name $(NAME)
