"""What one round of each method looks like: the contents of its drawing."""

from __future__ import annotations

from canvas import Arrow, Formula, Line, Round, Says

NOTHING_RAW = "No feature, no label and no parameter crosses the line."
GRADIENT = "A gradient of each record crosses the line; without noise its label can be read off."


def up(what: str, size: str) -> Arrow:
    """From a client to the server, numbers for each record."""
    return Arrow(what, size, up=True, thick=True)


def down(what: str, size: str, *, thick: bool) -> Arrow:
    """From the server to a client."""
    return Arrow(what, size, up=False, thick=thick)


NAMED = Arrow("the batch: its record IDs", "announced by the server", up=False, thick=False)


DPZV = Round(
    "dpzv",
    "One round of DPZV",
    "A client sends record IDs and two embeddings of each record, at its parameters shifted "
    "to both sides along a secret direction. The server answers with one clipped, noised number, "
    "and the client moves along the direction by it.",
    synchronous=False,
    client=[
        Says("draws a batch and a direction u", 1),
        Formula("h± = h(w_m ± λu)"),
        Says("moves along the same u", 3),
        Formula("w_m ← w_m − η_m φ Δ u"),
    ],
    server=[
        Says("takes the slope of each record's loss", 2),
        Formula("δᵢ = (f(h⁺ᵢ) − f(h⁻ᵢ)) / 2λ"),
        Formula("Δ = (Σ clip(δᵢ) + noise) / B", noised=True),
        Says("keeps (h⁺ + h⁻)/2, and steps there"),
        Formula("w_0 ← w_0 − η_0 ∂L/∂w_0"),
    ],
    arrows=[
        up("IDs, h⁺ and h⁻", "2·B·d_h numbers"),
        down("Δ", "one number for the batch", thick=False),
    ],
    closing=[
        "Neither data nor gradients cross the line; labels enter that one number alone.",
        "The other columns of the table are what other clients sent last; they may be stale.",
    ],
)

CZOFO = Round(
    "czofo",
    "One round of VFL-CZOFO",
    "A client sends compressed embeddings. The server perturbs them along q directions that follow "
    "from a seed both share, answers with q slopes of the loss, and the client puts a gradient of "
    "its embeddings together from them and back-propagates it.",
    synchronous=False,
    client=[
        Says("embeds a batch", 1),
        Formula("C(h),  h = h(w_m)"),
        Says("puts a gradient together from q", 3),
        Says("slopes, and back-propagates it"),
        Formula("g = φ/q Σⱼ δⱼ uⱼ"),
        Formula("w_m ← w_m − η_m (∂h/∂w_m)ᵀ g"),
    ],
    server=[
        Says("perturbs h along each uⱼ, which", 2),
        Says("follow from a seed that both share"),
        Formula("δⱼ = (f(h + μuⱼ) − f(h)) / μ"),
        Formula("clip and noise, if wanted", noised=True),
        Says("steps at h"),
        Formula("w_0 ← w_0 − η_0 ∂L/∂w_0"),
    ],
    arrows=[
        up("IDs, C(h)", "B·d_h numbers"),
        down("δ₁ … δ_q", "q numbers for the batch", thick=False),
    ],
    closing=[
        NOTHING_RAW,
        "Directions are not sent: whoever reads the wire without the seed gets q plain numbers.",
    ],
)


def _forward_difference(step: str) -> list[Line]:
    return [
        Says("draws a batch and a direction u", 1),
        Formula("c = h(w_m)"),
        Formula("ĉ = h(w_m + μu)"),
        Says(step, 3),
        Formula("w_m ← w_m − η_m φ (ĥ−h)/μ · u"),
    ]


CASCADED = Round(
    "cascaded",
    "One round of VFL-Cascaded",
    "A client sends two embeddings of each record, plain and perturbed. The server answers "
    "with the two mean losses and makes one gradient step of its own; the client moves by their "
    "difference.",
    synchronous=False,
    client=_forward_difference("moves by the losses' difference"),
    server=[
        Says("evaluates both on the same weights", 2),
        Formula("h = mean f(c),  ĥ = mean f(ĉ)"),
        Formula("or (ĥ−h)/μ, clipped and noised", noised=True),
        Says("steps by its own gradient, at c"),
        Formula("w_0 ← w_0 − η_0 ∂L/∂w_0"),
    ],
    arrows=[
        up("IDs, c and ĉ", "2·B·d_h numbers"),
        down("h and ĥ", "two numbers for the batch", thick=False),
    ],
    closing=[
        NOTHING_RAW,
        "The cascade: no gradient at the clients, where it would tell labels; "
        "one at the server, where labels are.",
    ],
)

ZOO_VFL = Round(
    "zoo-vfl",
    "One round of ZOO-VFL",
    "A client sends two embeddings of each record, plain and perturbed. The server answers "
    "with the two mean losses. Client and server both move by forward differences along random "
    "directions.",
    synchronous=False,
    client=_forward_difference("moves by the losses' difference"),
    server=[
        Says("evaluates both on the same weights", 2),
        Formula("h = mean f(c),  ĥ = mean f(ĉ)"),
        Formula("or (ĥ−h)/μ, clipped and noised", noised=True),
        Says("moves by a difference of its own"),
        Formula("s = (f(w_0 + μu_0) − f(w_0)) / μ"),
        Formula("w_0 ← w_0 − η_0 φ s u_0"),
    ],
    arrows=[
        up("IDs, c and ĉ", "2·B·d_h numbers"),
        down("h and ĥ", "two numbers for the batch", thick=False),
    ],
    closing=[
        NOTHING_RAW,
        "Nobody computes a gradient: neither model has to be differentiable.",
    ],
)

SYN_ZOO_VFL = Round(
    "syn-zoo-vfl",
    "One round of Syn-ZOO-VFL",
    "The server names a batch. All clients send two embeddings of each record, plain and "
    "perturbed. Each is answered with one slope of the loss; clients and server "
    "move by forward differences.",
    synchronous=True,
    client=[
        Says("draws a direction u", 1),
        Formula("c = h(w_m)"),
        Formula("ĉ = h(w_m + μu)"),
        Says("moves along the same u", 3),
        Formula("w_m ← w_m − η_m φ Δ_m u"),
    ],
    server=[
        Says("moves one client's part at a time", 2),
        Formula("h = f(c₁ … c_M)"),
        Formula("ĥ_m = f(c₁ … ĉ_m … c_M)"),
        Formula("Δ_m = (ĥ_m − h)/μ [+ noise]", noised=True),
        Says("moves by a difference of its own"),
        Formula("s = (f(w_0 + μu_0) − f(w_0)) / μ"),
        Formula("w_0 ← w_0 − η_0 φ s u_0"),
    ],
    arrows=[
        NAMED,
        up("c and ĉ", "2·B·d_h numbers each"),
        down("Δ_m", "one number for each client", thick=False),
    ],
    closing=[
        NOTHING_RAW,
        "The round waits for the slowest client; nothing in the table is stale.",
    ],
)

VAFL = Round(
    "vafl",
    "One round of VAFL",
    "A client sends embeddings of a batch. The server answers with the gradient of the loss with "
    "respect to each of them, and the client back-propagates it.",
    synchronous=False,
    client=[
        Says("embeds a batch", 1),
        Formula("h = h(w_m)"),
        Says("back-propagates what comes back", 3),
        Formula("w_m ← w_m −"),
        Formula("  η_m (∂h/∂w_m)ᵀ ∂L/∂h"),
    ],
    server=[
        Says("back-propagates the loss to h", 2),
        Formula("∂L/∂hᵢ for each record"),
        Formula("clip and noise, if wanted", noised=True),
        Says("steps at h"),
        Formula("w_0 ← w_0 − η_0 ∂L/∂w_0"),
    ],
    arrows=[
        up("IDs, h", "B·d_h numbers"),
        down("∂L/∂h", "B·d_h numbers", thick=True),
    ],
    closing=[
        GRADIENT,
        "The other columns of the table are what other clients sent last; they may be stale.",
    ],
)


def _in_step(name: str, title: str, *, q: str, own: str, code: bool, closing: list[str]) -> Round:
    """The first-order methods in step; ``q`` and ``own`` are steps of a client and the server."""
    h = "C(h_m)" if code else "h_m"
    steps: list[Line] = [Says("back-propagates what comes back", 3)]
    if q:
        steps = [
            Says(f"{q} times, with the same ∂L/∂h_m:", 3),
            Says("embeds anew, back-propagates"),
        ]
    server: list[Line] = [
        Says("back-propagates the loss", 2),
        Formula("∂L/∂h_m for each record"),
        Formula("clip and noise, if wanted", noised=True),
        Says(f"makes {own} steps on this batch" if own else "makes one step"),
        Formula("w_0 ← w_0 − η_0 ∂L/∂w_0"),
    ]
    description = (
        "The server names a batch. All clients send embeddings of it"
        f"{', compressed' if code else ''}. Each is answered with the gradient of the loss with "
        "respect to its embeddings, and back-propagates it"
        f"{f' in {q} local steps' if q else ''}."
    )
    return Round(
        name,
        title,
        description,
        synchronous=True,
        client=[
            Says("embeds the batch", 1),
            Formula(f"{h} = {h.replace('h_m', 'h(w_m)')}" if not code else "C(h_m), 8 bits"),
            *steps,
            Formula("w_m ← w_m −"),
            Formula("  η_m (∂h_m/∂w_m)ᵀ ∂L/∂h_m"),
        ],
        server=server,
        arrows=[
            NAMED,
            up(h, "B·d_h numbers" + (", 8 bits each" if code else "")),
            down("∂L/∂h_m", "B·d_h numbers", thick=True),
        ],
        closing=closing,
    )


SPLIT = _in_step(
    "split",
    "One round of split learning",
    q="",
    own="",
    code=False,
    closing=[GRADIENT, "Together this is one step of gradient descent on the joined model."],
)
COMPRESSED_VFL = _in_step(
    "compressed-vfl",
    "One round of Compressed-VFL",
    q="Q",
    own="Q",
    code=True,
    closing=[GRADIENT, "Few bits up, and Q steps for one exchange; Q = 1 unless set."],
)
FEDBCD = _in_step(
    "fedbcd",
    "One round of FedBCD",
    q="Q",
    own="Q",
    code=False,
    closing=[
        GRADIENT,
        "Q steps for one exchange: what a party knows of the others is Q steps old.",
    ],
)
FLEX_VFL = _in_step(
    "flex-vfl",
    "One round of Flex-VFL",
    q="Q_m",
    own="Q_0",
    code=False,
    closing=[
        GRADIENT,
        "Every party has its own number of steps: slow ones few, so nobody waits long.",
    ],
)


def _along(
    name: str,
    title: str,
    about: str,
    *,
    slopes: str,
    client: list[Says | Formula],
    server: list[Says | Formula],
    sent: str,
    told: tuple[str, str],
    closing: str,
) -> Round:
    """A query along directions; the two differ in what is summed, and who fits."""
    return Round(
        name,
        title,
        about,
        synchronous=False,
        client=[
            Says("computes K directions S from", 1),
            Says("its features alone, and sends"),
            Formula(f"h_i,  {slopes}"),
            *client,
        ],
        server=server,
        arrows=[up(sent, "(1 + K)·B·d_h numbers"), down(*told, thick=False)],
        closing=[NOTHING_RAW, closing],
    )


TANGENT = _along(
    "tangent",
    "One round of tangent queries",
    "A client sends embeddings and their derivatives along K directions. The server answers with K "
    "coefficients, which are already a step.",
    slopes="U_i = J_i S",
    client=[Says("steps", 3), Formula("w_m ← w_m − S v")],
    server=[
        Says("takes every record's K slopes", 2),
        Formula("s_i = U_iᵀ ∂f_i/∂h_i"),
        Formula("clipped together, noised: a", noised=True),
        Says("makes a damped Newton step of them"),
        Formula("v = a H / (H² + σ²/τ²)"),
        Says("moves its copy: h_i ← h_i − U_i v"),
    ],
    sent="IDs, h and U",
    told=("v", "K numbers for all records"),
    closing="One release for K numbers; the next client's slopes already know of the step.",
)
LABEL_STATISTIC = _along(
    "label-statistic",
    "One label statistic",
    "Each client asks once. It sends embeddings and features along K directions, is told one "
    "noised sum over labels, and fits its own logits to that.",
    slopes="c_i U_i = c_i J_i S",
    client=[
        Says("fits v to a: logistic, with", 3),
        Says("a ridge that σ decides"),
        Formula("w_m ← w_m + S v"),
    ],
    server=[
        Says("takes every label's slope at", 2),
        Says("logits of zero"),
        Formula("s_i = c_i U_iᵀ (1/k − y_i)"),
        Formula("clipped, summed, noised: a", noised=True),
    ],
    sent="IDs, h and c U",
    told=("a and σ", "K + 1 numbers for all records"),
    closing="The reply holds nothing of other parties, nor of the server's model.",
)

ONE_SHOT = Round(
    "one-shot",
    "One upload without labels",
    "Each client makes K numbers of every record from its own columns, without labels, and uploads "
    "them once. The label holder fits a head to them on its labels, which stays there. Nothing is "
    "sent back.",
    synchronous=False,
    client=[
        Says("makes K numbers of each record", 1),
        Formula("h = components of its columns"),
        Says("hears nothing"),
    ],
    server=[
        Says("fits a head on its own labels", 2),
        Formula("boosting, or logistic, over h"),
        Says("and its own columns; it stays"),
    ],
    arrows=[up("h of every record, once", "n·K numbers")],
    closing=[
        "No message to a client depends on a label: ε = 0.",
        "The label holder gets K numbers of each record, and keeps head and predictions.",
    ],
)

ROUNDS = (
    DPZV,
    CZOFO,
    CASCADED,
    ZOO_VFL,
    SYN_ZOO_VFL,
    VAFL,
    SPLIT,
    COMPRESSED_VFL,
    FEDBCD,
    FLEX_VFL,
    TANGENT,
    LABEL_STATISTIC,
    ONE_SHOT,
)
"""In the order of the navigation."""
