//! Saves the policy in force in the store, for the next start ([`super::initial`]) and for other nodes.

use serde_json::json;

use super::{Reloader, digest, pending::join_keys, snapshot};
use countersign_config::Config;
use countersign_domain::changes::machine::{OPERATOR, SYSTEM};
use countersign_store::PolicySnapshot;

impl Reloader {
    /// Saves the policy that this gateway starts with, and records what the operator accepted and what could not be
    /// compared.
    ///
    /// # Errors
    /// Fails if the record cannot be written.
    pub async fn record_start(&self) -> Result<(), String> {
        let _guard = self.reload_lock.lock().await;
        if let Some(reason) = &self.unreadable_reason {
            tracing::warn!(target: "countersign::audit", reason, "started without knowing the policy that was in force");
            let details =
                json!({ "digest": digest::digest(&self.config(), &self.salt), "loosens": [], "reason": reason });
            self.gateway.record("configuration_started", SYSTEM, details.to_string()).await?;
        }
        if !self.accepted_by_operator.is_empty() {
            let keys = join_keys(&self.accepted_by_operator);
            tracing::warn!(target: "countersign::audit", keys, "the operator started with a looser policy");
            let details =
                json!({ "digest": digest::digest(&self.config(), &self.salt), "loosens": self.accepted_by_operator });
            self.gateway.record("configuration_started", OPERATOR, details.to_string()).await?;
        }
        self.save_policy(false).await;
        Ok(())
    }

    /// Saves the policy if the last attempt failed.
    pub async fn retry_save(&self) {
        let _guard = self.reload_lock.lock().await;
        if self.state.lock().is_unsaved {
            // Another node may have saved a newer policy by now, which only a consent here may replace.
            self.save_policy(false).await;
        }
    }

    /// Saves the policy in force for the next start. If that fails, the store keeps the earlier policy, and the next
    /// start asks for consent again. With `by_consent`, it also replaces a newest policy of the store that this node never
    /// had.
    pub(super) async fn save_policy(&self, by_consent: bool) {
        let snapshot = {
            let salt = &self.salt;
            let mut state = self.state.lock();
            let settings = state.active_settings();
            let digest = digest::digest(&state.in_force, salt);
            let mut config = Config::clone(&state.in_force);
            config.upstreams.extend(state.suspended.iter().cloned());
            let body = match snapshot::serialize_policy(&settings, &config, state.file_has_keys, salt) {
                Ok(body) => body,
                Err(error) => {
                    if !state.is_unsaved {
                        tracing::error!(%error, "the policy in force cannot be saved; the store keeps the previous one");
                    }
                    state.is_unsaved = true;
                    return;
                }
            };
            let snapshot = PolicySnapshot { digest, refused: state.refused.clone(), body };
            if state.saved.as_ref() == Some(&snapshot) && !by_consent {
                state.is_unsaved = false;
                return;
            }
            snapshot
        };
        let saved = self.gateway.save_policy(snapshot.clone(), by_consent).await;
        let mut state = self.state.lock();
        match saved {
            Ok(()) => (state.saved, state.is_unsaved) = (Some(snapshot), false),
            Err(error) => {
                if !state.is_unsaved {
                    tracing::warn!(error, "the policy in force could not be saved for the next start; trying again");
                }
                state.is_unsaved = true;
            }
        }
    }

    /// Returns `true` if the configuration has the newest policy in the store, because a reviewer consented to it at another
    /// node before the file was read here.
    pub(super) async fn is_newest_policy(&self, config: &Config) -> bool {
        // The newest policy in the store may be looser than the unsaved one that is in force here.
        if self.state.lock().is_unsaved {
            return false;
        }
        let newest = self.gateway.newest_digest().await;
        newest.is_some_and(|newest| newest == digest::digest(config, &self.salt))
    }
}
