//! The hands: io_uring, or epoll and threads; all unsafe code is here.
