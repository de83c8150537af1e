//! Signing in with an identity provider: the way of a browser there and back, and the provider's notice of a logout.
//!
//! Everything that goes wrong ends on the dashboard, whose address then names the problem. The texts of the provider are not
//! passed on.

use actix_web::{
    HttpRequest, HttpResponse, HttpResponseBuilder,
    cookie::{Cookie, SameSite, time::Duration as CookieDuration},
    http::header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY},
    web,
};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    Problem,
    account::{Accounts, set_cookie},
    body, json_ok,
};
use countersign_auth::tokens::oidc::{self, SignInProblem};
use countersign_protocol::{ErrorKind, McpError};

/// The path of the cookie of a sign-in that has begun.
const COOKIE_PATH: &str = "/api/sign-in";

/// The ways to sign in.
#[derive(Serialize, ToSchema)]
struct SignInOptions {
    /// `true` if people can sign in with an identity provider, at `/api/sign-in/provider`.
    provider: bool,
}

/// Returns the ways to sign in to the dashboard.
#[utoipa::path(get, path = "/api/sign-in", operation_id = "getSignInOptions", security(()), responses(
    (status = 200, body = SignInOptions, description = "The ways to sign in")))]
pub async fn options(accounts: web::Data<Accounts>) -> HttpResponse {
    json_ok(&SignInOptions { provider: accounts.provider_sign_ins.client().config().is_some() })
}

/// Sends a browser to the identity provider.
#[utoipa::path(get, path = "/api/sign-in/provider", operation_id = "beginProviderSignIn", security(()), responses(
    (status = 302, description = "The provider's page, or the dashboard with `#sign-in-problem=…`")))]
pub async fn begin(accounts: web::Data<Accounts>) -> Result<HttpResponse, Problem> {
    match accounts.provider_sign_ins.client().begin(Timestamp::now()).await {
        Ok(started) => {
            let mut response = redirect(&started.url);
            set_cookie(&mut response, &flow_cookie(&accounts, started.cookie, oidc::MAX_DURATION.as_secs()))?;
            Ok(response)
        }
        Err(problem) => Ok(redirect(&problem_page(problem))),
    }
}

/// The parameters with which the identity provider sends a browser back (RFC 6749, RFC 9207).
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "they describe the endpoint; the client of the provider reads the query itself")]
pub struct CallbackParams {
    state: Option<String>,
    code: Option<String>,
    iss: Option<String>,
    error: Option<String>,
}

/// Finishes the sign-in of a browser that comes back from the identity provider.
#[utoipa::path(get, path = "/api/sign-in/callback", operation_id = "finishProviderSignIn", security(()),
    params(CallbackParams), responses(
    (status = 302, description = "The dashboard, with `#code=…` or `#sign-in-problem=…`")))]
pub async fn finish(request: HttpRequest, accounts: web::Data<Accounts>) -> Result<HttpResponse, Problem> {
    let cookie = request.cookie(oidc::COOKIE);
    let finished =
        accounts.provider_sign_ins.finish(request.query_string(), cookie.as_ref().map(Cookie::value), Timestamp::now());
    let page = match finished.await {
        Ok(code) => format!("/#code={code}"),
        Err(problem) => problem_page(problem),
    };
    let mut response = redirect(&page);
    set_cookie(&mut response, &flow_cookie(&accounts, String::new(), 0))?;
    Ok(response)
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
    (status = 200, description = "The sign-ins have ended."), (status = 400), (status = 408), (status = 413), (status = 503)))]
pub async fn back_channel_logout(
    payload: web::Payload,
    accounts: web::Data<Accounts>,
) -> Result<HttpResponse, Problem> {
    let form = body::read_form(body::MAX_BODY_BYTES, payload, accounts.request_timeout).await?;
    let mut tokens = form.iter().filter(|(name, _)| name == "logout_token");
    let (Some((_, token)), None) = (tokens.next(), tokens.next()) else {
        return Err(Problem::from(McpError::new(ErrorKind::InvalidRequest, "the form must have one logout_token")));
    };
    accounts.provider_sign_ins.end_sessions(token, Timestamp::now()).await?;
    Ok(no_store(HttpResponse::Ok()).finish())
}

fn problem_page(problem: SignInProblem) -> String {
    format!("/#sign-in-problem={}", problem.name())
}

fn redirect(url: &str) -> HttpResponse {
    no_store(HttpResponse::Found()).insert_header((LOCATION, url)).finish()
}

fn no_store(mut response: HttpResponseBuilder) -> HttpResponseBuilder {
    response.insert_header((CACHE_CONTROL, "no-store")).insert_header((REFERRER_POLICY, "no-referrer"));
    response
}

/// Builds the cookie of a sign-in that has begun. It is `Lax`, because the browser comes back from another site.
fn flow_cookie(accounts: &Accounts, value: String, seconds: i64) -> Cookie<'static> {
    Cookie::build(oidc::COOKIE, value)
        .http_only(true)
        .same_site(SameSite::Lax)
        .path(COOKIE_PATH)
        .max_age(CookieDuration::seconds(seconds))
        .secure(accounts.authentication.sign_ins.has_secure_cookies())
        .finish()
}
