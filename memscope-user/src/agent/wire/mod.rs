//! One request to a server of the site over one connection, plain or with TLS: a receiver of OTLP, an object store.

mod endpoint;
mod exchange;
mod tls;

pub(super) use self::{
    endpoint::Endpoint,
    exchange::{Connect, ExchangeError, exchange},
    tls::{Reach, Tls},
};
