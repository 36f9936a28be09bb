//! What nodes say to each other, as types and as bytes. Pure.
