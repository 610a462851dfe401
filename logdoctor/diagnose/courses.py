"""What writers did after their errors: why one was taken for the end of its writer, and another was not."""

from logdoctor.diagnose.verdict import Examined
from logdoctor.types import WriterCourse

_MOST = 16
_WORK = 3  # kinds of lines that a course names
_NAME = 200  # letters of its name


def courses(case: Examined) -> tuple[WriterCourse, ...]:
    """Return what the writers of the cause, of what followed from it and of what was survived did next, in the order of
    these errors; one for each claim and writer, at most 16."""
    judged = case.judgement
    told: dict[tuple[int, str, str], WriterCourse] = {}
    found = (*([judged.cause] if judged.cause else []), *judged.symptoms, *judged.survived)
    for finding in found:
        key = finding.stream, finding.origin.channel, finding.key
        if key in told:
            continue
        if len(told) == _MOST:
            break
        after = case.courses[finding.stream].aftermath.course(finding)
        told[key] = WriterCourse(
            stream=case.readings[finding.stream].record.stream,
            line=finding.line,
            writer=finding.origin.channel[:_NAME].strip(),
            reason=finding.reason,
            work=tuple(sorted(after.work)[:_WORK]),
            lines=after.lines,
            work_lines=after.of_work,
            survived=judged.survival.get((finding.stream, finding.line), ""),
        )
    return tuple(sorted(told.values(), key=lambda course: (course.stream, course.line)))
