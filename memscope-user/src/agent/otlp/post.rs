//! A message, sent.

use std::time::Duration;

use http_body_util::Full;
use hyper::{Request, body::Bytes, header::RETRY_AFTER};

use super::answer::Answer;
use crate::agent::wire::{Connect, ExchangeError, exchange};

/// Sends a request. Connection and answer have this time together.
pub(super) async fn post<C: Connect>(
    connect: &C,
    request: Request<Full<Bytes>>,
    patience: Duration,
) -> Result<Answer, ExchangeError> {
    let (head, body) = exchange(connect, request, patience).await?.into_parts();
    let retry_after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok(Answer { status: head.status, retry_after, body: body.map(Into::into) })
}
