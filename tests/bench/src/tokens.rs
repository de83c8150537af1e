//! Measures a proxied call with an access token (a JWT) beside the same call with a key.

use std::{
    rc::Rc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::{
    calls::{CONNECTIONS, Caller, OverHttp, load},
    echo::Era,
    http::{Http, modern, with_bearer},
    process::{RunSettings, Server},
    report::{self, goal, line, median, micros},
};

/// The audience of the tokens.
const AUDIENCE: &str = "bench";

/// The credential of a caller.
#[derive(Clone, Copy)]
pub enum Credential {
    Key,
    Token,
}

/// A gateway that accepts a key and the tokens of an issuer, in front of an upstream.
pub struct TokenStand {
    pub gateway: Server,
    _echo: Server,
    key: String,
    token: String,
}

impl TokenStand {
    pub async fn new(setting: &RunSettings) -> Result<Self> {
        let echo = Server::echo(Era::Modern, 10).await?;
        let (issuer, token) = start_issuer().await?;
        let lines = format!(
            "auth: {{ mode: keys, tokens: [{{ issuer: \"{issuer}\", audiences: [{AUDIENCE}] }}] }}\npublic_url: https://gateway.example\n"
        );
        let gateway = Server::gateway_with_config(setting, echo.port, &lines, None).await?;
        let key = gateway.create_key(setting, "agent", &[])?;
        Ok(Self { gateway, _echo: echo, key, token })
    }

    pub async fn callers(&self, credential: Credential) -> Result<Vec<Box<dyn Caller>>> {
        let port = self.gateway.port;
        let params = json!({"name": "echo", "arguments": {"text": "All work and no play. ".repeat(10)}});
        let bearer = match credential {
            Credential::Key => &self.key,
            Credential::Token => &self.token,
        };
        let request = Rc::new(with_bearer(&modern(port, "tools/call", params), bearer)?);
        let mut callers: Vec<Box<dyn Caller>> = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut http = Http::connect(port).await?;
            // It must be a result of the tool, not an error that happens to be fast.
            let answer = http.json(&request).await?;
            anyhow::ensure!(answer["result"]["content"][0]["text"].is_string(), "{answer}");
            callers.push(Box::new(OverHttp(http, Rc::clone(&request))));
        }
        Ok(callers)
    }

    /// Returns microseconds of the gateway's CPU for each call.
    async fn measure(&self, callers: &mut [Box<dyn Caller>], time: Duration) -> Result<f64> {
        load(callers, time / 4).await?;
        let before = self.gateway.cpu()?;
        let calls = load(callers, time).await?;
        Ok(micros(self.gateway.cpu()? - before) / calls as f64)
    }
}

pub async fn run(setting: &RunSettings) -> Result<()> {
    report::section("Proxied calls with an access token (a JWT), beside the same with a key", "scripts/bench tokens");
    let (time, rounds) = if setting.quick { (Duration::from_millis(800), 1) } else { (Duration::from_secs(1), 21) };
    let stand = TokenStand::new(setting).await?;
    let mut with_key = stand.callers(Credential::Key).await?;
    let mut with_token = stand.callers(Credential::Token).await?;
    let (mut of_key, mut of_token, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..rounds {
        // In turn, so that a busy moment of the machine affects both.
        let (key, token) = (stand.measure(&mut with_key, time).await?, stand.measure(&mut with_token, time).await?);
        of_key.push(key);
        of_token.push(token);
        ratios.push(token / key);
    }
    let ratio = median(ratios);
    line(
        "2026-07-28, CPU a call",
        &format!("key {:5.1} µs, token {:5.1} µs ({CONNECTIONS} connections)", median(of_key), median(of_token)),
    );
    goal("", format!("token {ratio:.2}"), "≤ 1.1 times a key", ratio <= 1.1);
    Ok(())
}

/// Starts an issuer with one key. Returns its address, and a token of usual size.
async fn start_issuer() -> Result<(String, String)> {
    let random = SystemRandom::new();
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).ok().context("no key")?;
    let pair =
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref(), &random).ok().context("no key")?;
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let issuer = format!("http://{}", listener.local_addr()?);

    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    let claims = json!({
        "iss": issuer, "aud": AUDIENCE, "sub": "248289761001", "client_id": "bench", "scope": "tools:read tools:propose",
        "iat": now, "exp": now + 86_400, "jti": "5ff4ffa8-7e24-4ee3-a8fa-e8a0b5b9b7c3", "email": "jane.doe@example.com",
        "name": "Jane Doe", "groups": ["platform-engineering", "database-administrators", "on-call", "everybody"],
    });
    let header = json!({"alg": "ES256", "typ": "at+jwt", "kid": "bench"});
    let signed = format!("{}.{}", encode(header.to_string()), encode(claims.to_string()));
    let signature = pair.sign(&random, signed.as_bytes()).ok().context("no signature")?;
    let token = format!("{signed}.{}", encode(signature));

    let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "bench", "alg": "ES256", "use": "sig", "x": encode(x), "y": encode(y)});
    let keys = json!({"keys": [key]});
    let metadata = json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")});
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = answer(stream, &metadata, &keys).await;
        }
    });
    Ok((issuer, token))
}

async fn answer(mut stream: TcpStream, metadata: &Value, keys: &Value) -> Result<()> {
    let mut request = [0; 4096];
    let length = stream.read(&mut request).await?;
    let document = if request[..length].starts_with(b"GET /keys ") { keys } else { metadata };
    let body = document.to_string();
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(stream.shutdown().await?)
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
