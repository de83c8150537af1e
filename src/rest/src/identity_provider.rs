//! Signs people in with an identity provider: sends a browser there, receives it when it comes back, and receives the
//! provider's notice of a logout.
//!
//! A sign-in that fails ends on the dashboard, whose address then names the problem. The provider's own error texts are
//! not passed on.

use std::borrow::Cow;

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder,
    cookie::{Cookie, SameSite, time::Duration as CookieDuration},
    http::header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY},
    web,
};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{Problem, Query, SignInData, body, json_response};
use countersign_auth::{
    codes,
    tokens::{
        oidc::{self, SignInError},
        public_client::ClientSettings,
    },
};
use countersign_http::guard::RequestAuthenticator;
use countersign_protocol::{ErrorKind, McpError};
use countersign_review::Changes;

/// The path of the cookies of a sign-in that is not complete.
const COOKIE_PATH: &str = "/api/sign-in";

/// The ways to sign in.
#[derive(Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SignInOptions {
    /// `true` if people can sign in with an identity provider, at `/api/sign-in/provider`.
    pub provider: bool,
    /// The address of `/api/sign-in/provider` on the host to which the browser comes back; absent without a provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sign_in_url: Option<String>,
    /// The settings of `countersign login`; absent if the gateway accepts no tokens of a public client of the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<CliSignIn>)]
    pub cli: Option<ClientSettings>,
}

/// The public client of the command line at the identity provider, and what it must ask for.
#[derive(ToSchema)]
#[schema(rename_all = "camelCase")]
#[expect(dead_code, reason = "it describes the settings, which are serialized by the crate that reads them")]
struct CliSignIn {
    issuer: String,
    client_id: String,
    scopes: Vec<String>,
    /// The resource indicator (RFC 8707); absent if the provider must choose the audience by itself.
    resource: Option<String>,
}

/// Returns the ways to sign in to the dashboard and on the command line.
#[utoipa::path(get, path = "/api/sign-in", operation_id = "getSignInOptions", security(()), responses(
    (status = 200, body = SignInOptions, description = "The ways to sign in")))]
pub async fn options(data: web::Data<SignInData>) -> HttpResponse {
    let client = data.provider_sign_ins.client();
    let config = client.config();
    let tokens = data.authentication.authenticator.tokens();
    let cli = config.as_ref().and_then(|config| tokens.client_settings(config));
    let sign_in_url = config.is_some().then(|| client.sign_in_url());
    json_response(&SignInOptions { provider: config.is_some(), sign_in_url, cli })
}

/// Sends a browser to the identity provider.
///
/// With the id of a change, the person must authenticate again, as recently and as strongly as the rule of the change requires.
#[utoipa::path(get, path = "/api/sign-in/provider", operation_id = "beginProviderSignIn", security(()),
    params(("change" = Option<String>, Query, description = "The id of the change to decide on.")), responses(
    (status = 302, description = "The provider's page, or the dashboard with `#sign-in-problem=…`")))]
pub async fn begin(
    request: HttpRequest,
    data: web::Data<SignInData>,
    changes: web::Data<Changes>,
) -> Result<HttpResponse, Problem> {
    let query = Query::read(&request, &["change"])?;
    // The rule decides, and never the request, what the person must do.
    let change = match query.get("change") {
        Some(id) => changes.get(id).await?,
        None => None,
    };
    let required = change.as_ref().and_then(|change| change.terms.sign_in.as_ref());
    match data.provider_sign_ins.client().begin(required, Timestamp::now()).await {
        Ok(started) => {
            let cookies = FlowCookies { authentication: &data.authentication, path: COOKIE_PATH };
            let cookie = cookies.build(oidc::SIGN_IN_COOKIE, started.cookie, oidc::MAX_SIGN_IN_DURATION);
            Ok(redirect(&started.url).cookie(cookie).finish())
        }
        Err(error) => Ok(redirect(&problem_url(error)).finish()),
    }
}

/// The parameters with which an identity provider or authorization server sends a browser back (RFC 6749, RFC 9207).
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "they describe endpoints; the clients of OAuth read the query themselves")]
pub struct CallbackParams {
    state: Option<String>,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
}

/// Finishes the sign-in of a browser that comes back from the identity provider.
///
/// The code works only in this browser, which gets a cookie for it.
#[utoipa::path(get, path = "/api/sign-in/callback", operation_id = "finishProviderSignIn", security(()),
    params(CallbackParams), responses(
    (status = 302, description = "The dashboard, with `#code=…` or `#sign-in-problem=…`")))]
pub async fn finish(request: HttpRequest, data: web::Data<SignInData>) -> HttpResponse {
    let cookie = request.cookie(oidc::SIGN_IN_COOKIE);
    let cookie = cookie.as_ref().map(Cookie::value);
    let finished = data.provider_sign_ins.finish(request.query_string(), cookie, Timestamp::now()).await;
    let url = match &finished {
        Ok(code) => format!("/#code={}", code.code),
        Err(error) => problem_url(*error),
    };
    let mut response = redirect(&url);
    let cookies = FlowCookies { authentication: &data.authentication, path: COOKIE_PATH };
    // The cookie may belong to another sign-in, which was begun in another tab and can still be finished.
    if finished != Err(SignInError::Interrupted) {
        response.cookie(cookies.build_removal(oidc::SIGN_IN_COOKIE));
    }
    if let Ok(code) = finished {
        let name = codes::cookie_name(&code.code);
        response.cookie(cookies.build(name, code.secret, codes::SESSION_CODE_LIFETIME));
    }
    response.finish()
}

/// The form with a logout token.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes the body, which is read as pairs")]
struct LogoutForm {
    logout_token: String,
}

/// Ends the sign-ins of a person or a session that the identity provider has signed out (OpenID Connect Back-Channel Logout 1.0).
#[utoipa::path(post, path = "/api/sign-in/back-channel-logout", operation_id = "backChannelLogout", security(()),
    request_body(content = LogoutForm, content_type = "application/x-www-form-urlencoded"), responses(
    (status = 200, description = "The sign-ins have ended.")))]
pub async fn back_channel_logout(
    request: HttpRequest,
    payload: web::Payload,
    data: web::Data<SignInData>,
) -> Result<HttpResponse, Problem> {
    let form = body::read_form(&request, payload).await?;
    let mut tokens = form.iter().filter(|(name, _)| name == "logout_token");
    let (Some((_, token)), None) = (tokens.next(), tokens.next()) else {
        return Err(Problem::from(McpError::new(ErrorKind::InvalidRequest, "the form must have one logout_token")));
    };
    data.provider_sign_ins.end_sessions(token, Timestamp::now()).await?;
    Ok(no_store(HttpResponse::Ok()).finish())
}

/// Returns the address of the dashboard with a problem.
fn problem_url(error: SignInError) -> String {
    format!("/#sign-in-problem={}", error.name())
}

/// Begins the response that sends a browser to another page.
pub(super) fn redirect(url: &str) -> HttpResponseBuilder {
    let mut response = no_store(HttpResponse::Found());
    response.insert_header((LOCATION, url));
    response
}

/// Keeps the response out of caches, and its address out of the requests that follow.
fn no_store(mut response: HttpResponseBuilder) -> HttpResponseBuilder {
    response.insert_header((CACHE_CONTROL, "no-store")).insert_header((REFERRER_POLICY, "no-referrer"));
    response
}

/// The cookies of a browser that leaves for another site. They are `Lax`, because the browser comes back from there.
pub(super) struct FlowCookies<'a> {
    pub authentication: &'a RequestAuthenticator,
    pub path: &'static str,
}

impl FlowCookies<'_> {
    /// Returns a cookie that the browser keeps for this time.
    pub(super) fn build(
        &self,
        name: impl Into<Cow<'static, str>>,
        value: String,
        lifetime: SignedDuration,
    ) -> Cookie<'static> {
        Cookie::build(name, value)
            .http_only(true)
            .same_site(SameSite::Lax)
            .path(self.path)
            .max_age(CookieDuration::seconds(lifetime.as_secs()))
            .secure(self.authentication.sign_ins.has_secure_cookies())
            .finish()
    }

    /// Returns a cookie that removes the one of this name.
    pub(super) fn build_removal(&self, name: &'static str) -> Cookie<'static> {
        self.build(name, String::new(), SignedDuration::ZERO)
    }
}
