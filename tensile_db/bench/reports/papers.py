"""The papers' figures, as printed, by table.

Networks are named as in workloads.py, policies as in POLICIES.  Rates are (MSR, EOR, CBR).
"""

from collections.abc import Mapping

Rates = tuple[float, float, float]

#: TENSILE table III, one job on an RTX A6000, batch 16.  Its vDNN is vDNN_conv (section V-A).
TENSILE_III: Mapping[str, Mapping[str, Rates]] = {
    "vgg16": {
        "vdnn_conv": (0.1109, 1.7835, 0.0622),
        "capuchin": (0.2558, 1.8304, 0.1398),
        "tensile": (0.2670, 1.6287, 0.1639),
    },
    "inception_v3": {
        "vdnn_conv": (0.1633, 2.5184, 0.0648),
        "capuchin": (0.4331, 2.7745, 0.1561),
        "tensile": (0.4361, 1.6468, 0.2648),
    },
    "inception_v4": {
        "vdnn_conv": (0.1903, 2.5028, 0.0760),
        "capuchin": (0.5129, 3.2362, 0.1585),
        "tensile": (0.5154, 1.4281, 0.3609),
    },
    "resnet50": {
        "vdnn_conv": (0.1733, 2.2981, 0.0754),
        "capuchin": (0.3859, 2.2320, 0.1729),
        "tensile": (0.4258, 1.5540, 0.2740),
    },
    "densenet121": {
        "vdnn_conv": (0.1381, 2.6148, 0.0528),
        "capuchin": (0.4860, 3.4400, 0.1413),
        "tensile": (0.5135, 1.1678, 0.4397),
    },
}

#: TENSILE table I: the whole process, the cold start phase, the updating phase.
TENSILE_I: Mapping[str, Mapping[str, Rates]] = {
    "vgg16": {
        "whole": (0.2670, 1.6287, 0.1639),
        "cold start": (0.2670, 6.0128, 0.0444),
        "updated": (0.3192, 1.2475, 0.2559),
    },
    "inception_v3": {
        "whole": (0.4361, 1.6468, 0.2648),
        "cold start": (0.4361, 3.1128, 0.1401),
        "updated": (0.4788, 1.4839, 0.3227),
    },
    "inception_v4": {
        "whole": (0.5154, 1.4281, 0.3609),
        "cold start": (0.5154, 2.6727, 0.1929),
        "updated": (0.5558, 1.2898, 0.4309),
    },
    "resnet50": {
        "whole": (0.4258, 1.5540, 0.2740),
        "cold start": (0.4258, 3.5395, 0.1203),
        "updated": (0.4647, 1.3813, 0.3364),
    },
    "densenet121": {
        "whole": (0.5135, 1.1678, 0.4397),
        "cold start": (0.5135, 2.2532, 0.2279),
        "updated": (0.5236, 1.0664, 0.4910),
    },
}

#: TENSILE table II: EOR of the first iteration, TENSILE's and Capuchin's, and the prediction's cost in s.
TENSILE_II: Mapping[str, tuple[float, float, float]] = {
    "vgg16": (1.2523, 5.8053, 1.3549),
    "inception_v3": (1.4744, 6.7529, 1.4743),
    "inception_v4": (1.3797, 10.2088, 2.4991),
    "resnet50": (1.3924, 9.6073, 1.7823),
    "densenet121": (1.3855, 10.0925, 1.3855),
}

#: TENSILE table IV: the five networks launched one by one in random order.
TENSILE_IV: Mapping[str, Rates] = {
    "vdnn_conv": (0.0580, 1.6297, 0.0356),
    "capuchin": (0.1150, 7.6545, 0.0150),
    "tensile": (0.1565, 1.1589, 0.1350),
}

#: 2021 draft, table 1: VGG alone on an RTX 2080 Ti, batch 2.  Its EOR is the time added, over vanilla's.
DRAFT_1: Mapping[str, Rates] = {
    "vdnn_conv": (0.2733, 0.8580, 0.3185),
    "capuchin": (0.1003, 0.8971, 0.1118),
    "tensile": (0.2241, 0.0971, 2.3006),
}

#: 2021 draft, table 2: one to three VGGs.
DRAFT_2: Mapping[int, Mapping[str, Rates]] = {
    1: {
        "vdnn_conv": (0.2822, 0.8507, 0.3317),
        "capuchin": (0.1003, 0.8921, 0.1124),
        "tensile": (0.2001, 0.0838, 2.5112),
    },
    2: {
        "vdnn_conv": (0.2368, 0.9103, 0.2602),
        "capuchin": (0.0056, 0.9208, 0.0060),
        "tensile": (0.2295, 0.1016, 3.2256),
    },
    3: {
        "vdnn_conv": (0.2613, 0.9202, 0.2840),
        "capuchin": (0.1109, 0.9215, 0.1204),
        "tensile": (0.2767, 0.2793, 1.0478),
    },
}

_TSPLIT_POLICIES = ("vanilla", "vdnn_conv", "vdnn_all", "checkpoint", "superneurons", "tsplit")


def _tsplit(rows: Mapping[str, tuple[int | None, ...]]) -> Mapping[str, Mapping[str, int | None]]:
    return {name: dict(zip(_TSPLIT_POLICIES, row, strict=True)) for name, row in rows.items()}


#: TSPLIT table IV: the largest batch on a TITAN RTX; None where the policy cannot run the network.
TSPLIT_IV = _tsplit(
    {
        "vgg16": (67, 176, 413, 316, 462, 661),
        "vgg19": (61, 164, 411, 293, 441, 661),
        "resnet50": (76, 201, 783, 192, 591, 1278),
        "resnet101": (51, 138, 783, 124, 361, 1096),
        "inception_v4": (36, 131, 864, 220, 882, 1372),
        "transformer": (62, None, 452, 117, None, 730),
    }
)

#: TSPLIT table V: the largest parameter scale at batch 16.  InceptionV4's last two stand so in the paper.
TSPLIT_V = _tsplit(
    {
        "vgg16": (4, 10, 25, 19, 28, 40),
        "vgg19": (3, 10, 25, 18, 27, 40),
        "resnet50": (4, 12, 48, 12, 36, 79),
        "resnet101": (3, 8, 48, 7, 22, 68),
        "inception_v4": (2, 8, 54, 13, 55, 23),
        "transformer": (3, None, 18, 5, None, 30),
    }
)

#: TSPLIT figure 12 as its text gives it (section VI-B): how much faster TSPLIT is than another policy, by
#: batch, VGG-16 on a TITAN RTX; None where the other fails to run.
TSPLIT_12: Mapping[int, Mapping[str, float | None]] = {
    128: {"vdnn_conv": 1.46, "vdnn_all": 2.80, "checkpoint": 1.21, "superneurons": 1.11},
    384: {"vdnn_conv": None, "vdnn_all": 2.18, "checkpoint": None, "superneurons": 1.15},
}

#: Capuchin table 2: the largest batch in graph mode on a P100; its OpenAI is the better of two modes, of
#: which the memory mode is checkpoint_articulation (section 6.1).
CAPUCHIN_2: Mapping[str, Mapping[str, int | None]] = {
    name: dict(zip(("vanilla", "vdnn_conv", "checkpoint_articulation", "capuchin"), row, strict=True))
    for name, row in {
        "vgg16": (228, 272, 260, 350),
        "resnet50": (190, 520, 540, 1014),
        "resnet152": (86, 330, 440, 798),
        "inception_v3": (160, 400, 400, 716),
        "inception_v4": (88, 220, 220, 468),
        "bert": (64, None, 210, 450),
    }.items()
}

#: Salus table 2, in minutes: makespan, mean queueing, mean and 95 % job completion time, by scheduler.
SALUS_2: Mapping[str, tuple[float, float, float, float]] = {
    "fifo": (303.4, 167.6, 170.6, 251.1),
    "srtf": (306.0, 28.6, 53.4, 217.0),
    "pack": (287.4, 129.9, 145.5, 266.1),
    "fair": (301.6, 58.5, 96.6, 281.2),
}

#: Salus section 5.2: FIFO's makespan of 300 jobs over PACK's.
SALUS_SEARCH: Mapping[str, float] = {"resnet50_50": 1.07, "superres_128": 2.38}
