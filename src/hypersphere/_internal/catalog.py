"""Every name that configs and the command line take, readable without torch.

Generated from the tables in the code. Do not edit: add the entry where it lives and run `make tables`.
"""
# fmt: off

#: name of the package → the module that has it; "" for a module
PUBLIC: dict[str, str] = {
    "data": "", "energy": "", "geometry": "", "inspection": "", "integrations": "", "layers": "", "losses": "",
    "models": "", "neurons": "", "openset": "", "optim": "", "orthogonal": "", "report": "", "rotation": "",
    "train": "", "EnergyRegularizer": "energy", "class_energy": "energy", "hyperspherical_energy": "energy",
    "normalize_neurons": "energy", "spread": "energy", "diagnose": "inspection", "inspect": "inspection",
    "LearnableSigmoid": "layers", "SphereConv1d": "layers", "SphereConv2d": "layers", "SphereConv3d": "layers",
    "SphereGRU": "layers", "SphereLinear": "layers", "SphereLSTM": "layers", "SphereRNN": "layers",
    "fuse_bn": "layers", "similarity": "layers", "spherize": "layers", "AdaFaceLoss": "losses",
    "AMSoftmaxLoss": "losses", "ArcFaceLoss": "losses", "ASoftmaxLoss": "losses", "CurricularFaceLoss": "losses",
    "ElasticFaceLoss": "losses", "EmbeddingRegularizer": "losses", "GASoftmaxLoss": "losses", "MagFaceLoss": "losses",
    "SphereFace2Loss": "losses", "SphereFacePlusLoss": "losses", "SphereFaceRLoss": "losses", "SSoftmaxLoss": "losses",
    "UniFaceLoss": "losses", "WSoftmaxLoss": "losses", "functional": "losses", "select": "neurons", "OGD": "optim",
    "Hyperball": "optim", "Pion": "optim", "param_groups": "optim", "Resampler": "rotation", "merge": "rotation",
    "quantize": "rotation", "rotate": "rotation",
}

#: command → what it does
COMMANDS: dict[str, str] = {
    "completion": "Print a script that completes commands, flags and names in your shell.",
    "evaluate": "Evaluate a run: accuracy, loss, energy; verification, few-shot or identification for unseen classes.",
    "export": "Export a run's merged network as ONNX, torch.export or safetensors.",
    "figure": "Draw a figure of the papers or of their theory: SVG, PNG or an HTML page.",
    "finetune": "Fine-tune a trained network by rotations.",
    "inspect": "Report which layers of a model file waste neurons, how two files differ, or what embeddings are like.",
    "landscape": "Draw the loss and the error of a run around its weights, along random directions.",
    "list": "List the names that flags take: models, data, losses, recipes, ...; or the layers of a network.",
    "predict": "Predict labels or embeddings of images, folders or arrays.",
    "report": "Write one HTML page about runs: results, settings, curves, energies, neurons and features.",
    "reproduce": "Run a table of the papers and compare the results with the reported values.",
    "thomson": "Spread N points on the sphere with the least energy, and compare with the known minimum.",
    "train": "Train a network from a recipe, a config file or flags.",
    "tune": "Tune hyperparameters by successive halving.", "verify": "Check a run's files and checkpoints for damage.",
}

#: recipe → what it is
RECIPES: dict[str, str] = {
    "plain": "Train a small CNN on the digits that come with the package: the defaults, as without a recipe.",
    "spherenet": "Use layers that compare by angle instead of inner product (SphereNet).",
    "mhe": "Add the hyperspherical energy of the neurons to the loss (MHE).",
    "opt": "Train rotations of fixed random neurons instead of the neurons (OPT).",
    "s_opt": "Rotate a random quarter of the dimensions at a time (S-OPT).",
    "sphereface_plus": "Use a loss with an angular margin and the energy of the classes (SphereFace+).",
    "text_adamw": "Train a small Transformer on characters by AdamW; data.root is the folder with tinyshakespeare.",
    "text_muon": "The same by Muon: steps of the matrices are orthogonal.",
    "text_adamh": "The same by AdamH (Hyperball): Adam on spheres, every matrix keeps its norm.",
    "text_muonh": "The same by MuonH (Hyperball): Muon on spheres, every matrix keeps its norm.",
    "text_pion": "The same by Pion: rotations as steps, every matrix keeps its singular values.",
    "text_ngpt": "nGPT on the same: vectors and weights of length one, by Adam without warm-up.",
    "text_poet": "The same by POET: fixed random neurons, rotated on both sides in blocks that are drawn anew.",
}

#: figure → what it is
FIGURES: dict[str, str] = {
    "ideas": "the ideas of the three papers on a sphere (SphereNet, MHE, OPT)",
    "operators": "similarity functions g(θ) (SphereNet, Fig. 2)",
    "margins": "target logit of each margin (SphereNet, Eq. 11)",
    "heads": "target logit of the heads since 2020 (docs/losses.md)",
    "pair_energy": "the energy of a pair of neurons (MHE, Eq. 1)",
    "sphere": "ten neurons moved by orthonormality, energy, half-space energy (MHE, Fig. 1)",
    "weighted": "paths of neurons that weigh more than the others (MHE, Fig. 5, 6)",
    "phase": "two images with phases or magnitudes swapped or random (SphereNet, 1, poster); takes [IMAGE IMAGE]",
    "rotation": "what OPT keeps: angles between neurons, energy (OPT, Fig. 1, 6)",
    "lemmas": "condition numbers over a scale c, by automatic differentiation (SphereNet, Lemma 1, 2)",
    "depth": "condition numbers of N layers whose weights are scaled by c (SphereNet, 2.3)",
    "growth": "the least energy of N neurons against its growth law (MHE, Theorem 2)",
    "holes": "holes between neurons against their expected size (OPT, App. L)",
    "convergence": "accuracy, error and loss of runs over the steps (SphereNet, Fig. 3, 5); takes RUN [RUN ...]",
    "k": "histograms of the learned k of each layer (SphereNet, Fig. 4); takes RUN",
    "lambda": "error over the weight of the energy (MHE, Fig. 3); takes RUN|results/TABLE.json ...",
    "energy": "energy (s = 1) and error of runs over the steps (OPT, Fig. 6, 23); takes RUN [RUN ...]",
    "imbalance": "2-D features and classifier neurons of runs (MHE, Fig. 4, 8); takes RUN [RUN ...]",
    "features3d": "3-D features and classifier neurons of runs (OPT, Fig. 7); takes RUN [RUN ...]",
    "generated": "images that generators make (MHE, Fig. 7); takes RUN [RUN ...]",
    "identification": "identification rates of runs over distractors (MHE, Fig. 9); takes RUN [RUN ...]",
    "roc": "ROC curves of runs on pairs (MHE, Fig. 10); takes RUN [RUN ...] [PAIRS.txt]",
}

#: network → the data it takes
MODELS: dict[str, str] = {
    "cnn": "images", "cnn3": "images", "cnn6": "images", "cnn9": "images", "cnn15": "images", "cnn18": "images",
    "cnn45": "images", "cnn60": "images", "cnn69": "images", "cnn3.spherenet": "images", "cnn9.spherenet": "images",
    "cnn18.spherenet": "images", "cnn45.spherenet": "images", "cnn60.spherenet": "images", "cnn69.spherenet": "images",
    "cnn6.mhe": "images", "cnn9.mhe": "images", "cnn15.mhe": "images", "cnn6.opt": "images", "cnn9.opt": "images",
    "wide_cnn9.opt": "images", "cnn10.opt": "images", "cnn4.opt": "images", "cnn_mnist.opt": "images",
    "decoder": "text", "gcn": "graph", "gcn.opt": "graph", "mlp": "images", "mlp.opt": "images", "ngpt": "text",
    "pointnet": "points", "pointnet.opt": "points", "resnet20": "images", "resnet32": "images", "resnet18": "images",
    "resnet34": "images", "resnet32.spherenet": "images", "resnet32w.spherenet": "images",
    "resnet18.spherenet": "images", "resnet18v2.spherenet": "images", "resnet32.mhe": "images",
    "resnet18.mhe": "images", "resnet34.mhe": "images", "resnet20.opt": "images", "resnet32.opt": "images",
    "resnet18.opt": "images", "resnet18a.opt": "images", "resnet18b.opt": "images", "sphereface20": "images",
    "sphereface64": "images", "cnn20.opt": "images", "transformer": "text", "generator.mhe": "images",
    "discriminator.mhe": "images",
}

#: dataset → what it holds
DATA: dict[str, str] = {
    "casia_webface": "images", "cifar10": "images", "cifar100": "images", "cifar_fs": "images", "citeseer": "graph",
    "cora": "graph", "digits": "images", "fashion_mnist": "images", "fc100": "images", "image_folder": "images",
    "imagenet": "images", "imdb_face": "images", "lfw": "images", "mini_imagenet": "images", "mnist": "images",
    "modelnet": "points", "modelnet10": "points", "modelnet40": "points", "ms_celeb": "images", "orl": "images",
    "pubmed": "graph", "text": "text",
}

#: dataset → the folders of its official files, below root
FOLDERS: dict[str, tuple[str, ...]] = {
    "cifar10": ("cifar-10-batches-bin", "cifar-10-batches-py"), "cifar100": ("cifar-100-binary", "cifar-100-python"),
    "mnist": ("MNIST/raw", "mnist", "MNIST"),
    "fashion_mnist": ("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "FashionMNIST"),
    "modelnet": ("modelnet40_ply_hdf5_2048", "modelnet10_ply_hdf5_2048"), "modelnet40": ("modelnet40_ply_hdf5_2048",),
    "modelnet10": ("modelnet10_ply_hdf5_2048",),
}

AUGMENTATIONS: tuple[str, ...] = (
    "photo", "shift", "cifar10.spherenet", "cifar10+.spherenet", "cifar10+.spherenet.vertical", "cifar.mhe",
    "imagenet", "modelnet.opt", "photo.eval", "shift.eval", "cifar10.spherenet.eval", "cifar10+.spherenet.eval",
    "cifar10+.spherenet.vertical.eval", "cifar.mhe.eval", "imagenet.eval", "modelnet.opt.eval",
)

IMBALANCES: tuple[str, ...] = (
    "single", "multiple", "mnist0",
)

#: similarity → how many numbers it takes in parentheses, as in "sigmoid(0.7)"
SIMILARITIES: dict[str, int] = {
    "cosine": 0, "linear": 2, "sigmoid": 1, "learnable": 1,
}

MARGINS: tuple[str, ...] = (
    "multiplicative", "additive_cosine", "additive_angle",
)

#: loss → the settings it takes, beside label_smoothing and energy_weight
LOSSES: dict[str, tuple[str, ...]] = {
    "softmax": (), "w_softmax": ("similarity",), "ga_softmax": ("similarity", "margin", "scale", "annealing"),
    "a_softmax": ("margin", "scale", "annealing"), "s_softmax": ("similarity", "scale"),
    "am_softmax": ("margin", "scale"), "arcface": ("margin", "scale"),
    "sphereface_plus": ("margin", "scale", "annealing"), "adaface": ("margin", "scale"), "magface": ("scale",),
    "curricularface": ("margin", "scale"), "elasticface": ("margin", "scale", "kind", "plus"),
    "sphereface_r": ("margin", "scale", "version"), "sphereface2": ("margin", "scale"), "uniface": ("margin", "scale"),
    "multiplicative": ("similarity", "margin", "scale", "annealing"),
    "additive_cosine": ("similarity", "margin", "scale", "annealing"),
    "additive_angle": ("similarity", "margin", "scale", "annealing"), "center": ("center_weight",),
    "pml.AngularLoss": ("softmax_weight",), "pml.CircleLoss": ("softmax_weight",),
    "pml.ContrastiveLoss": ("softmax_weight",), "pml.FastAPLoss": ("softmax_weight",),
    "pml.GeneralizedLiftedStructureLoss": ("softmax_weight",), "pml.IntraPairVarianceLoss": ("softmax_weight",),
    "pml.LargeMarginSoftmaxLoss": ("margin", "scale", "softmax_weight"),
    "pml.LiftedStructureLoss": ("softmax_weight",), "pml.MarginLoss": ("margin", "softmax_weight"),
    "pml.MultiSimilarityLoss": ("softmax_weight",), "pml.NCALoss": ("softmax_weight",),
    "pml.NPairsLoss": ("softmax_weight",), "pml.NTXentLoss": ("softmax_weight",),
    "pml.NormalizedSoftmaxLoss": ("softmax_weight",), "pml.ProxyAnchorLoss": ("margin", "softmax_weight"),
    "pml.ProxyNCALoss": ("softmax_weight",), "pml.SignalToNoiseRatioContrastiveLoss": ("softmax_weight",),
    "pml.SoftTripleLoss": ("margin", "softmax_weight"),
    "pml.SubCenterArcFaceLoss": ("margin", "scale", "softmax_weight"), "pml.SupConLoss": ("softmax_weight",),
    "pml.TripletMarginLoss": ("margin", "softmax_weight"),
    "pml.TupletMarginLoss": ("margin", "scale", "softmax_weight"),
}

#: measure → the settings it takes
MEASURES: dict[str, tuple[str, ...]] = {
    "energy": ("half_space", "angular", "minibatch"), "comhe_random": ("half_space", "angular"),
    "comhe_angle": ("half_space", "angular"), "orthonormal": (), "orthoreg": (), "srip": (), "separation": (),
    "polarization": ("angular",), "covering": (), "gram_determinant": (),
}

#: loss of evenness of a batch of embeddings → the settings it takes
EVENNESS: dict[str, tuple[str, ...]] = {
    "koleo": (), "uniformity": (), "gor": (), "hug": (), "sigreg": (), "sphere_uniformity": (),
    "energy": ("half_space", "angular"),
}

#: method of a rotation → its inits
METHODS: dict[str, tuple[str, ...]] = {
    "gram_schmidt": ("identity", "normal"), "modified_gram_schmidt": ("identity", "normal"),
    "iterative_gram_schmidt": ("identity", "normal"), "householder": ("identity", "normal"),
    "givens": ("identity", "normal"), "lowdin": ("identity", "normal"), "canonical": ("normal",),
    "cayley": ("identity", "normal"), "exponential": ("identity", "normal"), "ogd": ("identity", "normal"),
    "regularized": ("identity", "normal"), "unconstrained": ("identity", "normal"),
    "positive_definite": ("identity", "normal"), "upper": ("identity", "normal"), "lower": ("identity", "normal"),
    "banded": ("identity", "normal"), "symmetric": ("identity", "normal"), "skew": ("normal",),
    "hessenberg_upper": ("identity", "normal"), "hessenberg_lower": ("identity", "normal"),
    "network": ("identity", "normal"), "none": ("identity", "normal"),
}

INITS: tuple[str, ...] = (
    "identity", "normal",
)

#: optimizer → the settings it takes, beside lr
OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "adadelta": ("weight_decay",), "adafactor": ("weight_decay",), "adagrad": ("weight_decay",),
    "adam": ("weight_decay", "betas"), "adamax": ("weight_decay", "betas"), "adamw": ("weight_decay", "betas"),
    "asgd": ("weight_decay",), "nadam": ("weight_decay", "betas"), "radam": ("weight_decay", "betas"),
    "rmsprop": ("momentum", "weight_decay"), "rprop": (), "sgd": ("momentum", "weight_decay"),
    "ogd": ("momentum", "weight_decay", "betas", "iterations", "rest"), "pion": ("weight_decay", "betas", "side"),
    "muon": ("momentum", "weight_decay", "betas"), "adamh": ("betas",), "muonh": ("momentum", "betas"),
    "row_sgd": ("momentum", "weight_decay"),
}

SCHEDULES: tuple[str, ...] = (
    "constant", "step", "cosine", "plateau",
)
