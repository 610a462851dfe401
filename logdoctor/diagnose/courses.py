"""What writers did after their errors: why an error was taken as fatal or as survived."""

from logdoctor.diagnose.verdict import Examined
from logdoctor.types import WriterCourse

_MOST = 16
_WORK = 3  # kinds of lines listed for a course
_NAME = 200  # characters of a writer's name


def courses(case: Examined) -> tuple[WriterCourse, ...]:
    """Return how the writers of causes, symptoms and survived errors went on. At most 16, one per claim and writer, in
    order of stream and line."""
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
