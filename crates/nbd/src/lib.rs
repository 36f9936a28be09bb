//! The NBD protocol, as a pure state machine.
