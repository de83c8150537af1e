//! Keeps the policy in force in the store, where the next start ([`super::opening`]) and other gateways find it.

use serde_json::json;

use super::{Reloads, digest, snapshot};
use countersign_config::Config;
use countersign_domain::changes::machine::{OPERATOR, SYSTEM};
use countersign_store::PolicySnapshot;

impl Reloads {
    /// Keeps the policy that this gateway begins with, and puts on record what the operator has decided, and what
    /// could not be compared.
    ///
    /// # Errors
    /// The record could not be written.
    pub async fn begin(&self) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        if let Some(reason) = &self.unread {
            tracing::warn!(target: "countersign::audit", reason, "started without knowing the policy that was in force");
            let details =
                json!({ "digest": digest::digest(&self.config(), &self.salt), "loosens": [], "reason": reason });
            self.applies.record("configuration_started", SYSTEM, details.to_string()).await?;
        }
        if !self.meant.is_empty() {
            let keys: Vec<&str> = self.meant.iter().map(|one| one.key.as_str()).collect();
            tracing::warn!(target: "countersign::audit", keys = keys.join(", "), "the operator started with a looser policy");
            let details = json!({ "digest": digest::digest(&self.config(), &self.salt), "loosens": self.meant });
            self.applies.record("configuration_started", OPERATOR, details.to_string()).await?;
        }
        self.save(false).await;
        Ok(())
    }

    /// Keeps what could not be kept so far.
    pub async fn save_again(&self) {
        let _turn = self.turn.lock().await;
        if self.lock().unsaved {
            // Others may have gone on meanwhile, by a newer consent.
            self.save(false).await;
        }
    }

    /// Keeps the policy in force for the next start. What is lost where that fails is asked for again: until then the store
    /// has the policy from before.
    pub(super) async fn save(&self, by_consent: bool) {
        let snapshot = {
            let salt = &self.salt;
            let mut state = self.lock();
            let waiting = state.waiting.as_ref().map(|(waiting, _)| waiting);
            let settings = state.shown.in_force(&self.started, &state.in_force, waiting, &state.needs_restart);
            let digest = digest::digest(&state.in_force, salt);
            let mut whole = Config::clone(&state.in_force);
            whole.upstreams.extend(state.absent.iter().cloned());
            let body = match snapshot::body(&settings, &whole, salt) {
                Ok(body) => body,
                Err(error) => {
                    if !state.unsaved {
                        tracing::error!(%error, "the policy in force cannot be written down; that from before is kept");
                    }
                    state.unsaved = true;
                    return;
                }
            };
            let snapshot = PolicySnapshot { digest, refused: state.refused.clone(), body };
            if state.saved.as_ref() == Some(&snapshot) && !by_consent {
                state.unsaved = false;
                return;
            }
            snapshot
        };
        let saved = self.applies.save(snapshot.clone(), by_consent).await;
        let mut state = self.lock();
        match saved {
            Ok(()) => (state.saved, state.unsaved) = (Some(snapshot), false),
            Err(error) => {
                if !state.unsaved {
                    tracing::warn!(error, "the policy in force could not be kept for the next start; trying again");
                }
                state.unsaved = true;
            }
        }
    }

    /// Whether this is what the store has as the newest: consented to at another gateway, before the file was read here.
    pub(super) async fn is_newest(&self, config: &Config) -> bool {
        // What this gateway has in force is not there, and may be stricter.
        if self.lock().unsaved {
            return false;
        }
        let newest = self.applies.newest().await;
        newest.is_some_and(|newest| newest == digest::digest(config, &self.salt))
    }
}
