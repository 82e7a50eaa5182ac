//! The client port as clients of every kind see it: HTTP/2, TLS, certificates, compression.

mod connection;
mod http2;
