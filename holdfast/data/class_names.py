"""What the classes of the known data sets are called, in the order of their labels."""

from __future__ import annotations

import string

DIGITS = tuple(string.digits)
FASHION = ("T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
EMNIST_BY_CLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
# A lower-case letter is a class of its own only where it differs from its capital: C and c are one class, A and a two.
EMNIST_BALANCED = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
LETTERS = tuple(string.ascii_lowercase)
HAR = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
PNEUMONIA = ("normal", "pneumonia")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
"""
CIFAR100 = tuple(name.replace("_", " ") for name in _CIFAR100.split())
