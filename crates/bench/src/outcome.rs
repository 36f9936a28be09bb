//! Why something could not be measured, for people.

/// What came of a step.
pub(crate) type Outcome<T> = Result<T, String>;

/// A failure with this reason.
pub(crate) fn fail<T>(why: impl Into<String>) -> Outcome<T> {
    Err(why.into())
}
