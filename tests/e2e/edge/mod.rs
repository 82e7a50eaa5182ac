//! The client port as clients of every kind see it: HTTP/2, TLS, certificates, compression.

mod coding;
mod connection;
mod http2;
