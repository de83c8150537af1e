//! Checks at the start that all nodes encrypt stored tokens with the same key. A node with another key could not read
//! the tokens of the others, and would end their sign-ins.

use super::ServeError;
use countersign_auth::stored_credentials::StoredCredentials;
use countersign_domain::changes::digest::PartHasher;
use countersign_store::{Nodes, nodes::Node};

/// Records the key as the one in use, unless another node serves with another key. Returns the fingerprint of the
/// key for [`check_again`].
///
/// # Errors
/// [`ServeError::OtherTokenKey`] if another node serves with another key; errors of the store.
pub(super) async fn record(
    secret: &[u8; 32],
    credentials: &StoredCredentials,
    nodes: &dyn Nodes,
) -> Result<String, ServeError> {
    let mut hasher = PartHasher::new("countersign.token-key.1");
    hasher.add_part(secret);
    let fingerprint = hasher.finish();
    if credentials.writer().ensure_token_key(&fingerprint)? == fingerprint {
        return Ok(fingerprint);
    }
    // A node without a URL has not introduced itself yet, and checks the key again after that.
    let is_serving_peer = |node: &Node| node.is_alive && !node.is_self && !node.introduction.url.is_empty();
    if nodes.list().await?.iter().any(is_serving_peer) {
        return Err(ServeError::OtherTokenKey);
    }
    tracing::warn!(
        "the key that encrypts stored tokens has changed (`secrets`): sign-ins end when they are due for renewal, \
         and people connect their accounts at servers again"
    );
    credentials.writer().replace_token_key(&fingerprint)?;
    Ok(fingerprint)
}

/// Checks the key again once this node has introduced itself, because a node that started at the same time may have
/// replaced it.
///
/// # Errors
/// As [`record`].
pub(super) fn check_again(fingerprint: &str, credentials: &StoredCredentials) -> Result<(), ServeError> {
    let recorded = credentials.writer().ensure_token_key(fingerprint)?;
    if recorded == fingerprint { Ok(()) } else { Err(ServeError::OtherTokenKey) }
}
