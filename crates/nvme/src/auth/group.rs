//! Groups for the exchange of Diffie-Hellman: none, and the finite fields of RFC 7919.
//!
//! Always: the time that a power takes does not depend on the exponent.

use alloc::boxed::Box;
use alloc::vec::Vec;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};

/// A group. The value is its identifier.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[repr(u8)]
pub enum Group {
    /// No exchange: what is on the wire lets a guess at the secret be tried. Secrets of 32 random bytes are not guessed.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
    /// ffdhe6144.
    Ffdhe6144 = 4,
    /// ffdhe8192.
    Ffdhe8192 = 5,
}

impl Group {
    /// What a controller takes part in, first what it likes best: the cheapest exchange is as good as any, and better than none. In
    /// the largest groups one takes 100 ms of the thread that serves everybody, and strangers can ask for it.
    pub(super) const SERVED: [Group; 4] =
        [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Null];

    /// All of them.
    pub(super) const ALL: [Group; 6] = [
        Group::Ffdhe2048,
        Group::Ffdhe3072,
        Group::Ffdhe4096,
        Group::Ffdhe6144,
        Group::Ffdhe8192,
        Group::Null,
    ];

    pub(super) fn of_id(id: u8) -> Option<Group> {
        Group::ALL.into_iter().find(|&group| group as u8 == id)
    }

    /// Bytes of its prime, hence of what is exchanged.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 => 384,
            Group::Ffdhe4096 => 512,
            Group::Ffdhe6144 => 768,
            Group::Ffdhe8192 => 1024,
        }
    }

    /// Bits of an exponent; RFC 7919 asks for 225, 275, 325, 375 and 400.
    fn exponent_bits(self) -> u32 {
        match self {
            Group::Null | Group::Ffdhe2048 => 256,
            Group::Ffdhe3072 | Group::Ffdhe4096 => 384,
            Group::Ffdhe6144 | Group::Ffdhe8192 => 512,
        }
    }

    /// What RFC 7919 adds to the digits of e so that a prime comes out.
    fn added(self) -> u64 {
        match self {
            Group::Null => 0,
            Group::Ffdhe2048 => 560_316,
            Group::Ffdhe3072 => 2_625_351,
            Group::Ffdhe4096 => 5_736_041,
            Group::Ffdhe6144 => 15_705_020,
            Group::Ffdhe8192 => 10_965_728,
        }
    }

    /// 64 bits of ones, digits of e and what is added to them, 64 bits of ones.
    pub(super) fn prime(self) -> Vec<u8> {
        let middle = self.bytes() - 16;
        let digit =
            |at: usize| u8::from_str_radix(&DIGITS_OF_E[at..at + 2], 16).expect("hexadecimal");
        let mut prime = [0xff; 8].to_vec();
        prime.extend((0..middle).map(|at| digit(at * 2)));
        // The ones behind them are 1 less than a whole one.
        let mut carry = self.added() - 1;
        for byte in prime[8..].iter_mut().rev() {
            carry += u64::from(*byte);
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
        prime.extend([0xff; 8]);
        prime
    }

    /// `base` to the power of `exponent`; `None` where there is no exchange.
    fn power(self, base: &[u8], exponent: &[u8; 64]) -> Option<Box<[u8]>> {
        if self == Group::Null {
            return None;
        }
        let bits = u32::try_from(self.bytes()).ok()? * 8;
        let number = |bytes: &[u8]| BoxedUint::from_be_slice(bytes, bits).ok();
        let modulus = Option::from(Odd::new(number(&self.prime())?))?;
        let modulus = BoxedMontyParams::new_vartime(modulus);
        let base = BoxedMontyForm::new(number(base)?, &modulus);
        let bits = self.exponent_bits();
        let exponent = &exponent[64 - bits as usize / 8..];
        let exponent = BoxedUint::from_be_slice(exponent, bits).ok()?;
        Some(base.pow_bounded_exp(&exponent, bits).retrieve().to_be_bytes())
    }

    /// What is told to the other side; empty where there is no exchange.
    pub(super) fn public(self, exponent: &[u8; 64]) -> Vec<u8> {
        self.power(&[2], exponent).map(Vec::from).unwrap_or_default()
    }

    /// What both sides find, of what the other one told. `Err`: it told what none may. The inner `None`: no exchange.
    pub(super) fn shared(self, told: &[u8], exponent: &[u8; 64]) -> Result<Option<Vec<u8>>, ()> {
        if told.len() != self.bytes() {
            return Err(());
        }
        if self == Group::Null {
            return Ok(None);
        }
        // 0, 1 and the prime less 1 generate next to nothing; the prime and what is above it are not of the field.
        let mut most = self.prime();
        *most.last_mut().expect("it is long") -= 1;
        let (last, before) = told.split_last().expect("it is long");
        if (*last <= 1 && before.iter().all(|&byte| byte == 0)) || told >= &most[..] {
            return Err(());
        }
        self.power(told, exponent).map(Vec::from).map(Some).ok_or(())
    }
}

/// The first 8064 bits of e, in hexadecimal.
const DIGITS_OF_E: &str = "\
    adf85458a2bb4a9aafdc5620273d3cf1d8b9c583ce2d3695a9e13641146433fbcc939dce249b3ef97d2fe363630c75d8\
    f681b202aec4617ad3df1ed5d5fd65612433f51f5f066ed0856365553ded1af3b557135e7f57c935984f0c70e0e68b77\
    e2a689daf3efe8721df158a136ade73530acca4f483a797abc0ab182b324fb61d108a94bb2c8e3fbb96adab760d7f468\
    1d4f42a3de394df4ae56ede76372bb190b07a7c8ee0a6d709e02fce1cdf7e2ecc03404cd28342f619172fe9ce98583ff\
    8e4f1232eef28183c3fe3b1b4c6fad733bb5fcbc2ec22005c58ef1837d1683b2c6f34a26c1b2effa886b4238611fcfdc\
    de355b3b6519035bbc34f4def99c023861b46fc9d6e6c9077ad91d2691f7f7ee598cb0fac186d91caefe130985139270\
    b4130c93bc437944f4fd4452e2d74dd364f2e21e71f54bff5cae82ab9c9df69ee86d2bc522363a0dabc521979b0deada\
    1dbf9a42d5c4484e0abcd06bfa53ddef3c1b20ee3fd59d7c25e41d2b669e1ef16e6f52c3164df4fb7930e9e4e58857b6\
    ac7d5f42d69f6d187763cf1d5503400487f55ba57e31cc7a7135c886efb4318aed6a1e012d9e6832a907600a918130c4\
    6dc778f971ad0038092999a333cb8b7a1a1db93d7140003c2a4ecea9f98d0acc0a8291cdcec97dcf8ec9b55a7f88a46b\
    4db5a851f44182e1c68a007e5e0dd9020bfd64b645036c7a4e677d2c38532a3a23ba4442caf53ea63bb454329b7624c8\
    917bdd64b1c0fd4cb38e8c334c701c3acdad0657fccfec719b1f5c3e4e46041f388147fb4cfdb477a52471f7a9a96910\
    b855322edb6340d8a00ef092350511e30abec1fff9e3a26e7fb29f8c183023c3587e38da0077d9b4763e4e4b94b2bbc1\
    94c6651e77caf992eeaac0232a281bf6b3a739c1226116820ae8db5847a67cbef9c9091b462d538cd72b03746ae77f5e\
    62292c311562a846505dc82db854338ae49f5235c95b91178ccf2dd5cacef403ec9d1810c6272b045b3b71f9dc6b80d6\
    3fdd4a8e9adb1e6962a69526d43161c1a41d570d7938dad4a40e329ccff46aaa36ad004cf600c8381e425a31d951ae64\
    fdb23fcec9509d43687feb69edd1cc5e0b8cc3bdf64b10ef86b63142a3ab8829555b2f747c932665cb2c0f1cc01bd702\
    29388839d2af05e454504ac78b7582822846c0ba35c35f5c59160cc046fd8251541fc68c9c86b022bb7099876a460e74\
    51a8a93109703fee1c217e6c3826e52c51aa691e0e423cfc99e9e31650c1217b624816cdad9a95f9d5b8019488d9c0a0\
    a1fe3075a577e23183f81d4a3f2fa4571efc8ce0ba8a4fe8b6855dfe72b0a66eded2fbabfbe58a30fafabe1c5d71a87e\
    2f741ef8c1fe86fea6bbfde530677f0d97d11d49f7a8443d0822e506a9f4614e011e2a94838ff88cd68c8bb7c51eef6d";
