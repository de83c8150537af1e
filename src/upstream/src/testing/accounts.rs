//! Accounts for tests, whose tokens the test sets.

use std::sync::Arc;

use awc::http::{
    Uri,
    header::{AUTHORIZATION, HeaderValue},
};
use futures_util::future::LocalBoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::credentials::{
    AccountHolder, AuthorizationError, AuthorizationHeaders, CredentialSource, Credentials, HttpRefusal,
};
use countersign_config::UpstreamConfig;
use countersign_domain::principal::Principal;

/// The account of a person.
pub fn person(name: &str) -> AccountHolder {
    AccountHolder::Person(name.into())
}

/// One account.
#[derive(Default)]
pub struct FakeAccount {
    pub token: Mutex<Option<String>>,
    /// The tokens that refusals obtain, in order.
    pub renewed: Mutex<Vec<String>>,
    /// `true` if the account cannot be used without a token.
    is_required: Mutex<bool>,
    pub refusals: Mutex<Vec<HttpRefusal>>,
    pub nonces: Mutex<Vec<String>>,
    /// Set if the authorization server does not answer.
    pub unavailable: Mutex<bool>,
    pub connected_at: Mutex<Option<Timestamp>>,
}

impl FakeAccount {
    /// Creates an account with that token.
    pub fn new(token: &str) -> Arc<Self> {
        Arc::new(Self { token: Mutex::new(Some(token.to_owned())), ..Self::default() })
    }

    fn check(&self) -> Result<(), AuthorizationError> {
        if *self.unavailable.lock() {
            return Err(AuthorizationError::Unavailable("has an authorization server that does not answer".to_owned()));
        }
        match self.token.lock().is_none() && *self.is_required.lock() {
            true => Err(AuthorizationError::ConsentNeeded("needs a person who connects to it".to_owned())),
            false => Ok(()),
        }
    }
}

impl Credentials for FakeAccount {
    fn authorize<'a>(
        &'a self,
        _: &'a str,
        _: &'a Uri,
    ) -> LocalBoxFuture<'a, Result<AuthorizationHeaders, AuthorizationError>> {
        Box::pin(async move {
            self.check()?;
            let value = |token: &String| HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
            Ok(self.token.lock().as_ref().map(|token| (AUTHORIZATION, value(token))).into_iter().collect())
        })
    }

    fn handle_refusal<'a>(
        &'a self,
        refusal: &'a HttpRefusal,
        _: &'a AuthorizationHeaders,
        _: u32,
    ) -> LocalBoxFuture<'a, Result<(), AuthorizationError>> {
        Box::pin(async move {
            self.refusals.lock().push(refusal.clone());
            let mut renewed = self.renewed.lock();
            *self.token.lock() = if renewed.is_empty() { None } else { Some(renewed.remove(0)) };
            *self.is_required.lock() = true;
            self.check()
        })
    }

    fn learn_nonce(&self, nonce: &str) {
        self.nonces.lock().push(nonce.to_owned());
    }

    fn connected_at(&self) -> Option<Timestamp> {
        *self.connected_at.lock()
    }

    fn prepare(&self) -> LocalBoxFuture<'_, Result<(), AuthorizationError>> {
        Box::pin(async move { self.check() })
    }
}

/// All accounts at one server.
#[derive(Default)]
pub struct FakeAccounts {
    accounts: Mutex<Vec<(AccountHolder, Arc<FakeAccount>)>>,
    connected_holders: Mutex<Vec<AccountHolder>>,
}

impl FakeAccounts {
    /// Returns an account. That of a person cannot be used without a token.
    pub fn account(&self, holder: &AccountHolder) -> Arc<FakeAccount> {
        let mut accounts = self.accounts.lock();
        if let Some((_, account)) = accounts.iter().find(|(other, _)| other == holder) {
            return Arc::clone(account);
        }
        let account = Arc::new(FakeAccount::default());
        *account.is_required.lock() = *holder != AccountHolder::Gateway;
        accounts.push((holder.clone(), Arc::clone(&account)));
        account
    }

    /// Connects an account.
    pub fn connect(&self, holder: &AccountHolder) {
        *self.account(holder).token.lock() = Some(format!("token of {}", holder.as_str()));
        self.connected_holders.lock().push(holder.clone());
    }

    /// Disconnects an account.
    pub fn disconnect(&self, holder: &AccountHolder) {
        *self.account(holder).token.lock() = None;
        self.connected_holders.lock().retain(|other| other != holder);
    }
}

impl CredentialSource for FakeAccounts {
    fn credentials(&self, _: &Arc<UpstreamConfig>, holder: &AccountHolder) -> Option<Arc<dyn Credentials>> {
        Some(self.account(holder))
    }

    fn holder(&self, _: &UpstreamConfig, principal: &Principal) -> AccountHolder {
        person(principal.person_name())
    }

    fn known_holders(&self, _: &UpstreamConfig) -> Vec<AccountHolder> {
        self.connected_holders.lock().clone()
    }

    fn connect_url(&self, server: &str) -> String {
        format!("https://gateway.example/#/servers/{server}/connect")
    }
}
