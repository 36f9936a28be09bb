//! Frames over authenticated, encrypted sockets between nodes.
