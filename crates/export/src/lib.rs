//! How a volume is served: NBD over TCP and Unix sockets.
